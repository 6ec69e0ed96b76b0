"""Compares a benchmark with an earlier one: what is slower or larger, beyond the spread of the runs.

A change counts as slower if it exceeds the threshold and its interval excludes zero. The intervals hold together:
with 95 % for each of twenty figures, every third comparison of equal runs would find a slowdown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.bench.result import BenchResult
from firesteel.lab.compare.interval import estimate, share_confidence
from firesteel.lab.compare.samples import BenchSamples, RunSamples, take_samples
from firesteel.lab.memory.gpu import WHOLE
from firesteel.lab.memory.usage import ResourceUsage
from firesteel.lab.verdict import Verdict

THRESHOLD, MEMORY_GB = 0.03, 1.0
MAX_NOISE = 2.0  # thresholds; noisier runs cannot show a change of the threshold's size
TOO_FEW = 1.0  # noise of a change of 100 %: an interval by too few runs
GB = 1e9
MEMORY = "memory"  # the figure of peak memory
SLOWER, FASTER, SAME, UNCLEAR = "slower", "faster", "same", "unclear"
MORE_MEMORY, LESS_MEMORY = "more memory", "less memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    name: str  # of the workload
    figure: str
    unit: str
    before: float
    after: float
    change: float  # share of before: 0.05 is 5 % more
    low: float  # ends of its interval; infinite if there is a single sample
    high: float
    verdict: str

    @property
    def is_worse(self) -> bool:
        return self.verdict in (SLOWER, MORE_MEMORY)

    def in_words(self) -> str:
        if self.figure == MEMORY:
            return f"{self.name}: {self.after - self.before:+.2f} GB"
        return f"{self.name} {self.figure}: {100 * self.change:+.1f} % ({self.interval})"

    @property
    def interval(self) -> str:
        """Its interval in words. One that spans all changes up to twice the speed or more says nothing."""
        if (limit(self.high) - limit(self.low)) / 2 >= TOO_FEW:
            return "too few runs"
        return f"{100 * self.low:+.1f} to {100 * self.high:+.1f} %"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "low": limit(self.low), "high": limit(self.high)}


def limit(value: float) -> float:
    """Replaces infinity, which JSON lacks, by 1000 percent."""
    return max(-1.0, min(10.0, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    rows: list[Change] = field(default_factory=list)
    threshold: float = THRESHOLD
    memory_gb: float = MEMORY_GB
    missing: list[str] = field(default_factory=list)  # workloads measured before and not now
    differences: list[str] = field(default_factory=list)  # of the surroundings

    @property
    def regressions(self) -> list[Change]:
        return [row for row in self.rows if row.is_worse]

    @property
    def is_unclear(self) -> bool:
        return any(row.verdict == UNCLEAR for row in self.rows)

    @property
    def noise(self) -> float:
        """The change that half of the speeds would show: the median of their intervals' half widths."""
        widths = [(limit(row.high) - limit(row.low)) / 2 for row in self.rows if row.figure != MEMORY]
        return statistics.median(widths) if widths else TOO_FEW

    @property
    def is_too_noisy(self) -> bool:
        return self.noise > MAX_NOISE * self.threshold

    @property
    def verdict(self) -> Verdict:
        if self.regressions:
            return Verdict.FAILED
        return Verdict.UNPROVEN if self.is_too_noisy else Verdict.PASSED

    def in_words(self) -> str:
        worse = [row.in_words() for row in self.regressions]
        if worse:
            return f"{len(worse)} of {len(self.rows)} figures are worse: {'; '.join(worse)}"
        if self.is_too_noisy:
            return f"the runs cannot show a change of {100 * self.threshold:g} %: {describe_noise(self.noise)}"
        unclear = sum(row.verdict == UNCLEAR for row in self.rows)
        rest = f"; {unclear} are unclear because there were too few runs" if unclear else ""
        limits = f"{100 * self.threshold:g} % or {self.memory_gb:g} GB"
        return f"none of {len(self.rows)} figures is worse by {limits}{rest}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "words": self.in_words(),
            "verdict": self.verdict.value,
            "noise": self.noise,
            "threshold": self.threshold,
            "memory_gb": self.memory_gb,
            "rows": [row.as_dict() for row in self.rows],
            "regressions": [row.in_words() for row in self.regressions],
            "missing": self.missing,
            "differences": self.differences,
        }


def describe_noise(noise: float) -> str:
    if noise >= TOO_FEW:
        return "there are too few runs"
    return f"half of the figures would show no less than {100 * noise:.1f} %"


def compare(
    before: BenchSamples,
    after: BenchSamples,
    *,
    threshold: float = THRESHOLD,
    memory_gb: float = MEMORY_GB,
    differences: Sequence[str] = (),
) -> Comparison:
    """Compares figure by figure; `differences`, those of the surroundings, are added to the result."""
    old_names, new_names = before.workloads, after.workloads
    if not set(old_names) & set(new_names):
        raise UserError(
            f"the results have no workload in common: one has {', '.join(old_names) or 'none'}, the other "
            f"{', '.join(new_names) or 'none'}; measure both with the same plan"
        )
    shared = [key for key in before.figures if key in after.figures]
    confidence = share_confidence(len(shared))
    changes = [
        compare_figure(key, before.figures[key], after.figures[key], threshold, confidence) for key in shared
    ]
    return Comparison(
        rows=changes + _compare_memory(before.usage, after.usage, memory_gb),
        threshold=threshold,
        memory_gb=memory_gb,
        missing=[name for name in old_names if name not in new_names],
        differences=[*differences, *_list_scope_differences(before.usage, after.usage)],
    )


def smallest_visible_change(bench: BenchResult) -> float | None:
    """Returns the change that half of the figures would show if a second run had the same spread."""
    samples = [figure.runs for figure in take_samples(bench).figures.values()]
    confidence = share_confidence(len(samples))
    reaches = [estimate(values, values, confidence)[2] for values in samples if len(values) > 1]
    return statistics.median(reaches) if reaches else None


def compare_figure(
    key: tuple[str, str], old: RunSamples, new: RunSamples, threshold: float, confidence: float
) -> Change:
    change, low, high = estimate(old.runs, new.runs, confidence)
    return Change(
        name=key[0],
        figure=key[1],
        unit=old.unit,
        before=old.median,
        after=new.median,
        change=change,
        low=low,
        high=high,
        verdict=judge(change, low, high, threshold, is_higher_better=old.is_higher_better),
    )


def judge(change: float, low: float, high: float, threshold: float, *, is_higher_better: bool) -> str:
    if not is_higher_better:
        change, low, high = -change, -high, -low
    if abs(change) < threshold:
        return SAME
    if low <= 0.0 <= high:
        return UNCLEAR
    return SLOWER if change < 0 else FASTER


def _compare_memory(old: ResourceUsage | None, new: ResourceUsage | None, memory_gb: float) -> list[Change]:
    if old is None or new is None:
        return []
    peaks = {"host": (old.peak_memory_bytes, new.peak_memory_bytes)}
    if not _list_scope_differences(old, new):
        peaks["GPU"] = (old.peak_gpu_bytes or 0, new.peak_gpu_bytes or 0)
    return [_memory_change(name, was, now, memory_gb) for name, (was, now) in peaks.items() if was and now]


def _memory_change(name: str, was: int, now: int, memory_gb: float) -> Change:
    grown_gb, share = (now - was) / GB, now / was - 1
    return Change(
        name=f"peak memory, {name}",
        figure=MEMORY,
        unit="GB",
        before=was / GB,
        after=now / GB,
        change=share,
        low=share,
        high=share,
        verdict=MORE_MEMORY if grown_gb > memory_gb else LESS_MEMORY if -grown_gb > memory_gb else SAME,
    )


def _list_scope_differences(old: ResourceUsage | None, new: ResourceUsage | None) -> list[str]:
    """Returns a line if GPU memory has a different scope in both; earlier results had that of whole GPUs."""
    if old is None or new is None or not (old.peak_gpu_bytes and new.peak_gpu_bytes):
        return []
    was, now = (usage.gpu_scope or WHOLE for usage in (old, new))
    return [f"GPU memory: of {was} before, of {now} now, so not compared"] if was != now else []
