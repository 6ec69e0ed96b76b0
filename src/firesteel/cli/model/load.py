"""Loading of a model for verbs that use it in this process."""

from __future__ import annotations

from typing import Any

from firesteel.cli.progress import loading_bars
from firesteel.cli.tables import say
from firesteel.llm import LLM


def load(knobs: dict[str, Any]) -> LLM:
    """Loads the model, with progress bars on a terminal; says on stderr what was read and captured."""
    with loading_bars() as (progress, capturing):
        llm = LLM(progress=progress, capturing=capturing, **knobs)
    statistics = llm.engine.statistics()
    if statistics.graph_bytes:
        say(
            f"captured {statistics.graphs} decode steps in {statistics.graph_s:.1f} s: "
            f"{statistics.graph_bytes >> 20} MiB"
        )
    report = llm.load_report
    say(f"read {report.num_bytes / 1e9:.2f} GB in {report.seconds:.1f} s: {report.gb_s:.2f} GB/s")
    for layer in report.quantized:
        say(layer.in_words())
    return llm
