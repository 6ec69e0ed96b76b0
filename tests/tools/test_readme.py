"""The README's tables are those of the records."""

import readme


def test_the_tables_are_written_from_the_records():
    text = readme.README.read_text(encoding="utf-8")
    assert readme.write(text) == text
    assert text.count("% matrix") + text.count("% read") >= 20


def test_the_fastest_implementation_is_shown():
    records = readme.read_ops()
    fastest = min(
        one.median for one in records if one.parameters["op"] == "moe_matmul" and one.parameters["m"] == 64
    )
    assert f"{fastest * 1e6:,.0f} us" in readme.ops_table(records)
