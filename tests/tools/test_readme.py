"""The README's tables equal those made from the records."""

from dataclasses import replace

import readme
from firesteel.kernels.ops.moe_matmul import moe_matmul
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


def test_library_is_compared_with_our_fastest_implementation():
    records = readme.read_libraries()
    ours = [record for record in records if record.kernels]
    sizes = sorted({record.parameters["m"] for record in ours})
    assert len(sizes) == 11 and {record.parameters["m"] for record in records} == set(sizes)
    rows = readme.library_table(records).splitlines()[2:]
    for m, row in zip(sizes, rows, strict=True):
        cells = row.strip("| ").split(" | ")
        fastest = min((record for record in ours if record.parameters["m"] == m), key=lambda record: record.median)
        assert cells[:2] == [str(m), f"`{fastest.parameters['implementation']}`"]
        us = [float(cell.replace(",", "")) for cell in cells[2:6]]
        assert abs(us[0] - fastest.median * 1e6) < 0.06
        shares = [us[0] / time for time in us[1:3]]
        assert all(abs(float(cell) - share) < 0.006 for cell, share in zip(cells[6:], shares, strict=True))


def test_errors_that_the_page_of_libraries_states_are_those_of_the_records():
    page = readme.KERNELS_PAGE.read_text(encoding="utf-8")
    compared = [record.parameters for record in readme.read_libraries() if "errors" in record.parameters]
    worst = {}
    for start in ("ids", "logits"):
        errors = [parameters["errors"] for parameters in compared if parameters["start"] == start]
        worst[start] = [max(error[name] for error in errors) for name in ("worst", "rms")]
    (bounds,) = {(facts["errors"]["worst_bound"], facts["errors"]["rms_bound"]) for facts in compared}
    tolerance = moe_matmul.tolerance
    assert bounds == (tolerance.worst, tolerance.rms)
    assert all(error <= bound for error, bound in zip(worst["ids"], bounds, strict=True))
    assert "{:.4f} of the largest value".format(worst["ids"][0]) in page and f"{worst['ids'][1]:.4f} rms" in page
    assert "up to {:.2f} and {:.3f}".format(*worst["logits"]) in page
