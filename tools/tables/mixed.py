"""Table of mixed requests: ours beside vLLM's, cold and warm, on the same requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables.peers import PEERS
from tables.records import RECORDS, format_table, read
from tables.steps import WORKLOAD, name_workload

VLLM_WORKLOAD = RECORDS / "h200-vllm-workload"
VERSION = "0.26.0"  # of vLLM; records of others are not shown under its name
OURS, COLD, WARM = "firesteel", f"vLLM {VERSION}, cold", f"vLLM {VERSION}, warm"
ENGINES = (OURS, COLD, WARM)
OLD_NOTE = "\n\nfiresteel's column is empty because its records are of other requests (the table above)."


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedFigures:
    """The figures of one workload as one engine ran it; None: chat turns have no rate in vLLM's first records."""

    engine: str
    workload: str
    first_token_ms: float
    output_tok_s: float | None
    gap_ms: float | None  # p99


def read_mixed() -> list[MixedFigures]:
    return [*_read_ours(WORKLOAD), *_read_first(PEERS), *_read_passes(VLLM_WORKLOAD)]


def _read_ours(folder: Path) -> Iterator[MixedFigures]:
    """Reads records that name their requests; those that do not are of other requests."""
    for record in read(folder, "workload-*.json"):
        if "request_digest" in record.parameters:
            yield _convert(OURS, record.parameters)


def _read_passes(folder: Path) -> Iterator[MixedFigures]:
    """Reads records of `tools/vllm_workload.py` without the plugin: the first pass is cold, the last one warm."""
    every = [record.parameters for record in read(folder, "vllm-v*.json")]
    facts = [fact for fact in every if fact["engine"] == "vllm" and fact["vllm"] == VERSION]
    last = max((fact["pass"] for fact in facts), default=1)
    for fact in facts:
        if fact["pass"] == 1:
            yield _convert(COLD, fact)
        elif fact["pass"] == last:
            yield _convert(WARM, fact)


def _convert(engine: str, facts: dict[str, Any]) -> MixedFigures:
    return MixedFigures(
        engine=engine,
        workload=name_workload(facts),
        first_token_ms=facts["first_token_ms"]["p50"],
        output_tok_s=facts["output_tok_s"],
        gap_ms=(facts["gap_ms"] or {}).get("p99"),
    )


def _read_first(folder: Path) -> Iterator[MixedFigures]:
    """Reads vLLM's first records, of processes that had just started."""
    for path in sorted(folder.glob(f"vllm-{VERSION}-workload*.jsonl")):
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if line["kind"] != "start":
                yield MixedFigures(
                    engine=COLD,
                    workload=name_workload(line),
                    first_token_ms=line["ttft_ms"]["p50"],
                    output_tok_s=line.get("output_tok_s"),
                    gap_ms=(line.get("gap_ms") or {}).get("p99"),
                )


def mixed_table(measured: Iterable[MixedFigures]) -> str:
    """Returns a row per workload and figure and a column per engine; of several days, an engine's best figure."""
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for figures in measured:
        for label, value, choose in (
            ("output tok/s", figures.output_tok_s, max),
            ("first token ms", figures.first_token_ms, min),
            ("gap p99 ms", figures.gap_ms, min),
        ):
            if value is not None and _is_shown(figures.workload, label):
                row = rows.setdefault((figures.workload, label), {})
                row[figures.engine] = choose(value, row.get(figures.engine, value))
    shapes = {"output tok/s": "{:,.0f}"}
    cells = [
        [
            workload,
            label,
            *(shapes.get(label, "{:,.1f}").format(row[engine]) if engine in row else "" for engine in ENGINES),
        ]
        for (workload, label), row in rows.items()
    ]
    table = format_table(["requests", "", *ENGINES], cells)
    is_old = not any(OURS in row for row in rows.values())
    return table + OLD_NOTE * is_old


def _is_shown(workload: str, label: str) -> bool:
    """Tells whether a figure says something: the rate of a chat or of arrivals is that of who sends them."""
    return (
        ("closed" in workload) or (label == "first token ms") or ("turn" not in workload and label == "gap p99 ms")
    )
