"""Loading of a model for verbs that use it in this process."""

from __future__ import annotations

from typing import Any

from firesteel.cli.progress import loading_bars
from firesteel.cli.tables import say
from firesteel.llm import LLM


def load(settings: dict[str, Any]) -> LLM:
    """Loads the model, with progress bars on a terminal; says on stderr what was read and captured."""
    with loading_bars() as (progress, preparing):
        llm = LLM(progress=progress, preparing=preparing, **settings)
    statistics = llm.engine.statistics()
    if num_bytes := statistics.graph_bytes + statistics.prompt_graph_bytes + statistics.draft_graph_bytes:
        count, seconds = (
            statistics.graphs + statistics.prompt_graphs + statistics.draft_graphs,
            statistics.graph_s + statistics.prompt_graph_s + statistics.draft_graph_s,
        )
        say(f"captured {count} steps in {seconds:.1f} s: {num_bytes >> 20} MiB")
    report = llm.load_report
    say(f"read {report.num_bytes / 1e9:.2f} GB in {report.seconds:.1f} s: {report.gb_s:.2f} GB/s")
    for layer in report.quantized:
        say(layer.in_words())
    return llm
