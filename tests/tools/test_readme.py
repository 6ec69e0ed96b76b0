"""The README's tables equal those made from the records."""

from dataclasses import replace

import readme
from firesteel.quality import PRECISIONS


def test_tables_are_written_from_the_records():
    for page, tables in readme.pages().items():
        assert readme.write(page, tables) == page.read_text(encoding="utf-8")
    text = readme.README.read_text(encoding="utf-8")
    assert text.count("% matrix") + text.count("% read") >= 20


def test_perplexity_is_shown_for_every_format_of_keys_and_values():
    records = readme.read_kv()
    assert [record.parameters["stored"] for record in records] == [
        "float32, as computed",
        "bf16",
        "fp8, scale 1",
        "fp8, calibrated scales",
    ]
    assert all(abs(record.median / records[0].median - 1) < 0.01 for record in records)
    rows = readme.kv_table(records).splitlines()[2:]
    assert [f"{record.median:.5f}" in row for record, row in zip(records, rows, strict=True)] == [True] * 4
    assert rows[0].count("%") == 0 and all(row.count("%") == 1 for row in rows[1:])


def test_quality_is_shown_for_every_precision_beside_the_model_as_shipped():
    records = readme.read_quality()
    assert [record.parameters["precision"] for record in records] == list(PRECISIONS)[: len(records)]
    assert len(records) >= 5
    assert {record.parameters["limit"] for record in records} == {None}
    rows = readme.quality_table(records).splitlines()[2:]
    for record, row in zip(records, rows, strict=True):
        assert record.parameters["precision"] in row and f"{record.median:.4f}" in row
    assert rows[0].count("%") == 1 and all(row.count("%") == 2 for row in rows[1:])


def test_fastest_implementation_is_shown():
    records = readme.read_ops()
    fastest = min(
        record.median
        for record in records
        if record.parameters["op"] == "moe_matmul" and record.parameters["m"] == 64
    )
    assert f"{fastest * 1e6:,.0f} us" in readme.ops_table(records)


def test_steps_with_fp8_pages_are_separate():
    plain = readme.read_decode()[0]
    fp8 = replace(plain, config={**plain.config, "cache": {**plain.config["cache"], "kv_dtype": "fp8"}})
    rows = readme.decode_table([plain, fp8]).splitlines()[2:]
    assert "| as shipped |" in rows[0] and "| as shipped, FP8 KV |" in rows[1]


def test_decoding_through_the_engine_shows_the_figures_of_its_records():
    records = readme.read_loop()
    old = {"share_of_floor", "bytes_a_token", "stages_ms_a_step"}
    plain = [
        replace(record, parameters={k: v for k, v in record.parameters.items() if k not in old})
        for record in records
    ]
    assert "floor" not in readme.loop_table(plain)
    new = {"share_of_floor": 0.7, "bytes_a_token": 5.04e9, "stages_ms_a_step": {"schedule": 0.043}}
    mixed = [replace(plain[0], parameters={**plain[0].parameters, **new}), *plain[1:]]
    heads, _, first, second, *_ = readme.loop_table(mixed).splitlines()
    assert heads.endswith("| GB per token | share of the floor | scheduling us |")
    assert first.endswith("| 5.04 | 70 % | 43 |") and second.endswith("|  |  |  |")
