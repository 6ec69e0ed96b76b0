"""The samples of a benchmark that can be compared with those of another: one value per figure and run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firesteel.lab.bench.result import BenchResult, BenchRow
from firesteel.lab.bench.series import HIGHER
from firesteel.lab.memory.usage import ResourceUsage

FIGURES = ("pp_tok_s", "tg_tok_s", "ttft_ms", "tpot_ms")
PER_REQUEST = ("ttft_ms", "tpot_ms")  # have a sample per request, not per run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSamples:
    """The samples of one figure of one workload."""

    unit: str
    is_higher_better: bool
    median: float  # of all requests
    runs: tuple[float, ...]  # one value per run


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSamples:
    figures: Mapping[tuple[str, str], RunSamples]  # (workload, figure)
    usage: ResourceUsage | None

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(workload for workload, _ in self.figures))


def take_samples(bench: BenchResult) -> BenchSamples:
    figures = {
        (row.name, figure): sample_figure(row, figure)
        for row in bench.rows
        for figure in FIGURES
        if figure in row.series
    }
    return BenchSamples(figures=figures, usage=bench.usage)


def sample_figure(row: BenchRow, figure: str) -> RunSamples:
    series = row.series[figure]
    return RunSamples(
        unit=series.unit,
        is_higher_better=series.better == HIGHER,
        median=series.median,
        runs=tuple(average_by_run(row, figure)),
    )


def average_by_run(row: BenchRow, figure: str) -> list[float]:
    """Returns one sample per run: concurrent requests depend on each other and must not count separately."""
    values = row.series[figure].values
    concurrency = row.workload.concurrency if figure in PER_REQUEST else 1
    if len(values) % concurrency:
        return [statistics.fmean(values)]  # requests failed, so their runs are unknown
    return [statistics.fmean(values[at : at + concurrency]) for at in range(0, len(values), concurrency)]


def pool_samples(benches: Sequence[BenchResult]) -> BenchSamples:
    """Combines rounds of the same benchmark: a round's median is one sample, memory is the largest of any round."""
    rounds = [take_samples(bench) for bench in benches]
    shared = [key for key in rounds[0].figures if all(key in samples.figures for samples in rounds)]
    figures = {}
    for key in shared:
        medians = tuple(samples.figures[key].median for samples in rounds)
        first = rounds[0].figures[key]
        figures[key] = RunSamples(
            unit=first.unit,
            is_higher_better=first.is_higher_better,
            median=statistics.median(medians),
            runs=medians,
        )
    usages = [samples.usage for samples in rounds if samples.usage is not None]
    largest = max(usages, key=lambda usage: usage.peak_memory_bytes, default=None)
    return BenchSamples(figures=figures, usage=largest)
