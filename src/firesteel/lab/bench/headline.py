"""The workload that stands for a benchmark when engines are compared: one stream, pp2048 and tg32."""

from __future__ import annotations

import math

from firesteel.lab.bench.plan import HEADLINE_PP, HEADLINE_TG
from firesteel.lab.bench.result import PROMPT, BenchResult, BenchRow


def find_headline(bench: BenchResult) -> BenchRow | None:
    """Returns the row of one stream at the least depth with the lengths closest to the headline's."""

    def distance(row: BenchRow) -> tuple[float, ...]:
        workload = row.workload
        answer, prompt = (
            abs(math.log(tokens / wanted))
            for tokens, wanted in ((workload.tg, HEADLINE_TG), (workload.pp, HEADLINE_PP))
        )
        return workload.depth, answer, prompt

    return min(list_single_streams(bench), key=distance, default=None)


def list_single_streams(bench: BenchResult) -> list[BenchRow]:
    """Returns the rows of one stream that decoded, without those behind a cached context."""
    return [
        row
        for row in bench.rows
        if row.workload.concurrency == 1 and row.phase == PROMPT and "tg_tok_s" in row.series
    ]


def list_depths(bench: BenchResult, headline: BenchRow) -> dict[int, BenchRow]:
    """Returns the rows with the lengths of the headline, by depth."""
    lengths = headline.workload.pp, headline.workload.tg
    same = [row for row in list_single_streams(bench) if (row.workload.pp, row.workload.tg) == lengths]
    return {row.workload.depth: row for row in sorted(same, key=lambda row: row.workload.depth)}
