"""Tables of quality: formats of keys and values, precisions."""

from types import SimpleNamespace

from firesteel.quality import PRECISIONS
from tables import quality


def test_perplexity_is_shown_for_every_format_of_keys_and_values():
    records = quality.read_kv()
    assert [record.parameters["stored"] for record in records] == [
        "float32, as computed",
        "bf16",
        "fp8, scale 1",
        "fp8, calibrated scales",
    ]
    assert all(abs(record.median / records[0].median - 1) < 0.01 for record in records)
    rows = quality.kv_table(records).splitlines()[2:]
    assert [f"{record.median:.5f}" in row for record, row in zip(records, rows, strict=True)] == [True] * 4
    assert rows[0].count("%") == 0 and all(row.count("%") == 1 for row in rows[1:])


def test_quality_is_shown_for_every_precision_beside_the_model_as_shipped():
    records = quality.read_quality()
    names = [record.parameters["precision"] for record in records]
    assert names == [name for name in PRECISIONS if name in names]
    assert len(records) >= 6
    assert {record.parameters["limit"] for record in records} == {None}
    rows = quality.quality_table(records).splitlines()[2:]
    for record, row in zip(records, rows, strict=True):
        assert record.parameters["precision"] in row and f"{record.median:.4f}" in row
    assert rows[0].count("%") == 1 and all(row.count("%") == 2 for row in rows[1:])


def test_equalities_of_a_batch_invariant_engine_are_shown_with_their_bits():
    records = quality.read_invariance()
    rows = [row.strip("| ").split(" | ") for row in quality.bits_table(records).splitlines()[2:]]
    assert len(rows) == len(records) == 8
    for record, cells in zip(records, rows, strict=True):
        facts = record.parameters
        assert cells == [
            facts["equality"],
            facts["evidence"],
            str(facts["logit_rows"]),
            str(facts["logit_bits_differing"]),
        ]
        assert record.config["kernels"]["batch_invariant"]


def test_cost_of_batch_invariance_is_shown_beside_the_same_measurement_without_it():
    def measured(is_invariant, **parameters):
        return SimpleNamespace(parameters=parameters, config={"kernels": {"batch_invariant": is_invariant}})

    records = [
        measured(False, batch=8, ms_a_step=4.0),
        measured(False, tokens=100, ms=20.0),
        measured(True, tokens=100, ms=25.0),
        measured(True, batch=8, ms_a_step=5.5),
    ]
    assert quality.cost_table(records).splitlines()[2:] == [
        "| decoding step, requests: 8 | 4.00 | 5.50 | +38 % |",
        "| first token, prompt tokens: 100 | 20.00 | 25.00 | +25 % |",
    ]
    assert quality.cost_table([]).splitlines()[2] == "| not measured yet |  |  |  |"
