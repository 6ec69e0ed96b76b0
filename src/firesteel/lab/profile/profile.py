"""Where a step's time goes: by category, by kernel, by layer, and the gaps between; measures nothing.

Each moment belongs to one kernel, the one that began first of those that run, so that kernels which overlap are not
counted twice: categories and gaps together are the whole time from the first start to the last end.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.profile.names import GAPS, SAMPLING, Named, classify, find_bytes, sort_names
from firesteel.lab.trace import Slice
from firesteel.measure.roofline.roofline import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    source: str
    steps: int
    step_ms: float  # of the profile: all of it over its steps
    measured_ms: float | None  # a step without a profiler, where there was one
    categories: list[dict[str, Any]]  # category, ms, share, gb_s; gaps are the last
    kernels: list[dict[str, Any]]  # name, category, calls, ms, us_a_call, gb_s
    layers: list[dict[str, Any]] = field(default_factory=list)  # layer, ms, and of each category
    host: list[dict[str, Any]] = field(default_factory=list)  # stage, ms

    @property
    def sum_ms(self) -> float:
        return float(sum(one["ms"] for one in self.categories))

    def in_words(self) -> str:
        words = f"categories and gaps sum to {self.sum_ms:.3f} ms a step, over {self.steps} steps"
        if self.measured_ms is None:
            return words
        off = self.sum_ms / self.measured_ms - 1
        return f"{words}; without a profiler a step took {self.measured_ms:.3f} ms ({100 * off:+.1f} %)"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sum_ms": self.sum_ms, "words": self.in_words()}


def profile(
    slices: Sequence[Slice],
    *,
    source: str,
    steps: int | None = None,
    window_us: tuple[float, float] | None = None,
    num_layers: int | None = None,
    cost: StepCost | None = None,
    measured_ms: float | None = None,
    host: Sequence[Mapping[str, Any]] = (),
) -> Profile:
    """Of slices sorted by start, within a window or from the first to the last.

    `steps` are guessed from how often kernels ran where they are not known.
    """
    steps = find_steps(slices) if steps is None else steps
    if steps < 1:
        raise UserError(f"steps = {steps}: must be at least 1")
    owned, gaps_us = own_time(slices, window_us)
    calls = Counter(one.name for one in slices)
    by_name: defaultdict[str, float] = defaultdict(float)
    for one, us in zip(slices, owned, strict=True):
        by_name[one.name] += us
    named = sort_names(by_name)
    kernel_bytes, category_bytes = ({}, {}) if cost is None else find_bytes(named, cost)
    return Profile(
        source=source, steps=steps, step_ms=(sum(owned) + gaps_us) / steps / 1e3, measured_ms=measured_ms,
        categories=_categories(by_name, gaps_us, steps, named, category_bytes),
        kernels=_kernels(by_name, calls, steps, named, kernel_bytes),
        layers=[] if num_layers is None else _layers(slices, owned, steps, num_layers, named),
        host=[dict(one) for one in host],
    )  # fmt: skip


def own_time(slices: Sequence[Slice], window_us: tuple[float, float] | None = None) -> tuple[list[float], float]:
    """Microseconds that each slice has for itself, and those in which nothing runs."""
    owned, gaps, until = [], 0.0, slices[0].start_us if window_us is None else window_us[0]
    for one in slices:
        gaps += max(0.0, one.start_us - until)
        owned.append(max(0.0, one.end_us - max(one.start_us, until)))
        until = max(until, one.end_us)
    return owned, gaps + (0.0 if window_us is None else max(0.0, window_us[1] - until))


def find_steps(slices: Sequence[Slice]) -> int:
    """The largest number that divides how often each sampling kernel ran; without one, how often each did."""
    calls = Counter(one.name for one in slices)
    once_a_step = [count for name, count in calls.items() if classify(name) == SAMPLING]
    return math.gcd(*(once_a_step or calls.values()))


def _categories(
    by_name: Mapping[str, float], gaps_us: float, steps: int, named: Mapping[str, Named], moved: Mapping[str, float]
) -> list[dict[str, Any]]:
    times: defaultdict[str, float] = defaultdict(float)
    for name, us in by_name.items():
        times[named[name].category] += us / steps / 1e3
    gaps_ms = gaps_us / steps / 1e3
    total = (sum(times.values()) + gaps_ms) or 1.0
    rows = [
        {"category": name, "ms": ms, "share": ms / total, "gb_s": _rate(moved.get(name), ms)}
        for name, ms in sorted(times.items(), key=lambda item: -item[1])
    ]
    return [*rows, {"category": GAPS, "ms": gaps_ms, "share": gaps_ms / total, "gb_s": None}]


def _kernels(
    by_name: Mapping[str, float],
    calls: Mapping[str, int],
    steps: int,
    named: Mapping[str, Named],
    moved: Mapping[str, float],
) -> list[dict[str, Any]]:
    return [
        {"name": name, "category": named[name].category, "calls": calls[name] / steps, "ms": us / steps / 1e3,
         "us_a_call": us / calls[name], "gb_s": _rate(moved.get(name), us / steps / 1e3)}
        for name, us in sorted(by_name.items(), key=lambda item: -item[1])
    ]  # fmt: skip


def _layers(
    slices: Sequence[Slice], owned: Sequence[float], steps: int, num_layers: int, named: Mapping[str, Named]
) -> list[dict[str, Any]]:
    """A kernel that runs so often a step as there are layers, or a multiple of it, runs in each in turn."""
    calls = Counter(one.name for one in slices)
    seen: Counter[str] = Counter()
    times: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(num_layers + 1)]
    for one, us in zip(slices, owned, strict=True):
        each_step = max(1, calls[one.name] // steps)
        place = seen[one.name] % each_step
        seen[one.name] += 1
        each_layer = each_step // num_layers
        layer = place // each_layer if each_layer and place < each_layer * num_layers else num_layers
        times[layer][named[one.name].category] += us / steps / 1e3
    names = [*map(str, range(num_layers)), "outside layers"]
    return [
        {"layer": name, "ms": sum(row.values()), **{category: row[category] for category in sorted(row)}}
        for name, row in zip(names, times, strict=True)
    ]


def _rate(moved: float | None, ms: float) -> float | None:
    return moved / ms / 1e6 if moved and ms else None
