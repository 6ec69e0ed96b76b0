"""Table of vLLM with and without the plugin."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from firesteel.measure.record import Record
from tables.records import RECORDS, format_table, read

VLLM = RECORDS / "h200-vllm"


def read_vllm(folder: Path = VLLM) -> list[Record]:
    """Returns the records of vLLM with and without the plugin, decoding first."""

    def order(record: Record) -> tuple[str, int]:
        return record.parameters["kind"], record.parameters.get("batch") or record.parameters["tokens"]

    return sorted(read(folder, "vllm*.json"), key=order)


def vllm_table(records: list[Record]) -> str:
    """Returns a row per measurement and a column per engine and model runner, stock vLLM first."""
    rows: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        facts = record.parameters
        what = f"decode, {facts['batch']} at a time, tok/s" if "batch" in facts else f"{facts['tokens']} tokens, ms"
        engine = "stock vLLM" if facts["engine"] == "vllm" else "with firesteel"
        rows[what][f"{engine}, runner {facts['runner']}"] = record
    engines = sorted({engine for row in rows.values() for engine in row})
    started = ["start, s", *(f"{_started(rows, engine):.0f}" for engine in engines)]
    cells = [[what, *(_speed(row.get(engine)) for engine in engines)] for what, row in rows.items()]
    return format_table(["", *engines], [*cells, started])


def _speed(record: Record | None) -> str:
    if record is None:
        return ""
    batch = record.parameters.get("batch")
    return f"{record.median:.1f}" if batch is None else f"{1e3 * batch / record.median:,.0f}"


def _started(rows: dict[str, dict[str, Record]], engine: str) -> float:
    return max(row[engine].startup_s or 0.0 for row in rows.values() if engine in row)
