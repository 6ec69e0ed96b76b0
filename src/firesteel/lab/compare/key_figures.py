"""The figures that stand for a whole benchmark: speed of a prompt, of generation, and time to the first token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firesteel.lab.bench.plan import HEADLINE_PP, HEADLINE_TG
from firesteel.lab.bench.result import PROMPT, BenchResult, BenchRow
from firesteel.lab.compare.compare import THRESHOLD, Change, compare_figure
from firesteel.lab.compare.interval import share_confidence
from firesteel.lab.compare.samples import RunSamples, sample_figure

TTFT = "TTFT"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    name: str  # "pp2048", "tg32" or TTFT
    figure: str  # its name among the series of the row
    row: BenchRow
    samples: RunSamples


def pick_key_figures(bench: BenchResult) -> list[KeyFigure]:
    """Returns the figures of one stream at the least depth, with the lengths closest to pp2048 and tg32."""
    single = [row for row in bench.rows if row.workload.concurrency == 1 and row.phase == PROMPT]
    least = min((row.workload.depth for row in single), default=0)
    rows = [row for row in single if row.workload.depth == least]
    prompt, answer = _closest(rows, "pp_tok_s"), _closest(rows, "tg_tok_s")
    found = [
        ("" if prompt is None else f"pp{prompt.workload.pp}", "pp_tok_s", prompt),
        ("" if answer is None else f"tg{answer.workload.tg}", "tg_tok_s", answer),
        (TTFT, "ttft_ms", prompt),
    ]
    return [
        KeyFigure(name=name, figure=figure, row=row, samples=sample_figure(row, figure))
        for name, figure, row in found
        if row is not None and figure in row.series
    ]


def _closest(rows: Sequence[BenchRow], figure: str) -> BenchRow | None:
    """Returns the row closest to the preferred length; of several, that with the shortest other length."""
    is_prompt = figure == "pp_tok_s"

    def distance(row: BenchRow) -> tuple[float, int]:
        length, other = row.workload.pp, row.workload.tg
        if not is_prompt:
            length, other = other, length
        return abs(math.log(length / (HEADLINE_PP if is_prompt else HEADLINE_TG))), other

    return min((row for row in rows if figure in row.series), key=distance, default=None)


def compare_key_figures(before: Mapping[str, RunSamples], after: Sequence[KeyFigure]) -> dict[str, Change]:
    """Returns the change of each figure that both have, by name."""
    shared = [figure for figure in after if figure.name in before]
    confidence = share_confidence(len(shared))
    return {
        figure.name: compare_figure(
            (figure.row.name, figure.figure), before[figure.name], figure.samples, THRESHOLD, confidence
        )
        for figure in shared
    }
