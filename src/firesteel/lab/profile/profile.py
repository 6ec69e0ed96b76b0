"""Computes where a step's time goes: by category, by kernel, by layer, and the gaps between kernels.

Each moment belongs to one kernel, the one that started first of those running, so that overlapping kernels are not
counted twice: categories and gaps add up to the time from the first start to the last end.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from firesteel.errors import UserError
from firesteel.kernels.op.profile import SAMPLING
from firesteel.lab.codec import from_json
from firesteel.lab.profile.names import GAPS, KernelLabel, classify, count_bytes, label_kernels
from firesteel.lab.trace import Slice
from firesteel.measure.roofline.roofline import StepCost

OUTSIDE_LAYERS = "outside layers"
CLOSE = 0.05  # a profile whose sum differs more from the measured step was slowed by the profiler


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryTime:
    category: str
    ms: float  # per step
    share: float | None = None
    gb_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    name: str
    category: str
    calls: float  # per step
    ms: float  # per step
    us_a_call: float
    gb_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    layer: str  # its number, or OUTSIDE_LAYERS
    ms: float
    categories: Mapping[str, float]  # category -> ms

    def as_dict(self) -> dict[str, Any]:
        return {"layer": self.layer, "ms": self.ms, **self.categories}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    stage: str
    ms: float  # per step


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    source: str
    unit: str = "step"  # what is counted: "step", or "prompt" from its submission to its first token
    steps: int
    step_ms: float  # the whole profile divided by its steps
    measured_ms: float | None = None  # per step without a profiler, if it was measured
    categories: list[CategoryTime]  # gaps are last
    kernels: list[KernelTime]
    layers: list[LayerTime] = field(default_factory=list)  # OUTSIDE_LAYERS is last
    host: list[HostTime] = field(default_factory=list)

    @property
    def sum_ms(self) -> float:
        return sum(row.ms for row in self.categories)

    @property
    def is_close(self) -> bool:
        """True if the profiler did not slow the steps noticeably."""
        return self.measured_ms is None or abs(self.sum_ms / self.measured_ms - 1) <= CLOSE

    def in_words(self) -> str:
        words = (
            f"categories and gaps add up to {self.sum_ms:.3f} ms per {self.unit}, over {self.steps} {self.unit}s"
        )
        if self.measured_ms is None:
            return words
        difference = 100 * (self.sum_ms / self.measured_ms - 1)
        return f"{words}; without a profiler a {self.unit} took {self.measured_ms:.3f} ms ({difference:+.1f} %)"

    def as_dict(self) -> dict[str, Any]:
        layers = [row.as_dict() for row in self.layers]
        return {**asdict(self), "layers": layers, "sum_ms": self.sum_ms, "words": self.in_words()}


def parse_profile(content: Mapping[str, Any]) -> Profile:
    layers = [
        {
            "layer": row["layer"],
            "ms": row["ms"],
            "categories": {name: value for name, value in row.items() if name not in ("layer", "ms")},
        }
        for row in content.get("layers") or ()
    ]
    return from_json(Profile, {**content, "layers": layers}, "the profile")


def compute_profile(
    slices: Sequence[Slice],
    *,
    source: str,
    unit: str = "step",
    steps: int | None = None,
    window_us: tuple[float, float] | None = None,
    num_layers: int | None = None,
    cost: StepCost | None = None,
    measured_ms: float | None = None,
    host: Sequence[HostTime] = (),
) -> Profile:
    """Takes slices ordered by start, within a window or from the first start to the last end.

    If `steps` is None, it is guessed from how often kernels ran.
    """
    steps = guess_steps(slices, is_cut=window_us is not None) if steps is None else steps
    if steps < 1:
        raise UserError(f"steps = {steps}: must be at least 1")
    owned, gaps_us = own_time(slices, window_us)
    calls = Counter(piece.name for piece in slices)
    by_name: defaultdict[str, float] = defaultdict(float)
    for piece, us in zip(slices, owned, strict=True):
        by_name[piece.name] += us
    labels = label_kernels(by_name)
    kernel_bytes, category_bytes = ({}, {}) if cost is None else count_bytes(labels, cost)
    return Profile(
        source=source,
        unit=unit,
        steps=steps,
        step_ms=(sum(owned) + gaps_us) / steps / 1e3,
        measured_ms=measured_ms,
        categories=_categories(by_name, gaps_us, steps, labels, category_bytes),
        kernels=_kernels(by_name, calls, steps, labels, kernel_bytes),
        layers=[] if num_layers is None else _layers(slices, owned, steps, num_layers, labels),
        host=list(host),
    )


def own_time(slices: Sequence[Slice], window_us: tuple[float, float] | None = None) -> tuple[list[float], float]:
    """Returns the microseconds that belong to each slice, and those in which nothing runs."""
    owned, gaps, until = [], 0.0, slices[0].start_us if window_us is None else window_us[0]
    for piece in slices:
        gaps += max(0.0, piece.start_us - until)
        owned.append(max(0.0, piece.end_us - max(piece.start_us, until)))
        until = max(until, piece.end_us)
    return owned, gaps + (0.0 if window_us is None else max(0.0, window_us[1] - until))


def guess_steps(slices: Sequence[Slice], *, is_cut: bool = False) -> int:
    """Returns the greatest common divisor of the calls of each sampling kernel or, without one, of each kernel.

    A window cuts through steps: there it is the number of calls of the rarest sampling kernel.
    """
    calls = Counter(piece.name for piece in slices)
    per_step = [count for name, count in calls.items() if classify(name) == SAMPLING]
    return min(per_step) if is_cut and per_step else math.gcd(*(per_step or calls.values()))


def _categories(
    by_name: Mapping[str, float],
    gaps_us: float,
    steps: int,
    labels: Mapping[str, KernelLabel],
    moved: Mapping[str, float],
) -> list[CategoryTime]:
    times: defaultdict[str, float] = defaultdict(float)
    for name, us in by_name.items():
        times[labels[name].category] += us / steps / 1e3
    gaps_ms = gaps_us / steps / 1e3
    total = (sum(times.values()) + gaps_ms) or 1.0
    rows = [
        CategoryTime(category=name, ms=ms, share=ms / total, gb_s=_rate(moved.get(name), ms))
        for name, ms in sorted(times.items(), key=lambda item: -item[1])
    ]
    return [*rows, CategoryTime(category=GAPS, ms=gaps_ms, share=gaps_ms / total)]


def _kernels(
    by_name: Mapping[str, float],
    calls: Mapping[str, int],
    steps: int,
    labels: Mapping[str, KernelLabel],
    moved: Mapping[str, float],
) -> list[KernelTime]:
    return [
        KernelTime(
            name=name,
            category=labels[name].category,
            calls=calls[name] / steps,
            ms=us / steps / 1e3,
            us_a_call=us / calls[name],
            gb_s=_rate(moved.get(name), us / steps / 1e3),
        )
        for name, us in sorted(by_name.items(), key=lambda item: -item[1])
    ]


def _layers(
    slices: Sequence[Slice],
    owned: Sequence[float],
    steps: int,
    num_layers: int,
    labels: Mapping[str, KernelLabel],
) -> list[LayerTime]:
    """A kernel whose calls per step are a multiple of the number of layers runs in each layer in turn."""
    calls = Counter(piece.name for piece in slices)
    seen: Counter[str] = Counter()
    times: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(num_layers + 1)]
    for piece, us in zip(slices, owned, strict=True):
        per_step = max(1, calls[piece.name] // steps)
        place = seen[piece.name] % per_step
        seen[piece.name] += 1
        per_layer = per_step // num_layers
        layer = place // per_layer if per_layer and place < per_layer * num_layers else num_layers
        times[layer][labels[piece.name].category] += us / steps / 1e3
    names = [*map(str, range(num_layers)), OUTSIDE_LAYERS]
    return [
        LayerTime(layer=name, ms=sum(row.values()), categories=dict(sorted(row.items())))
        for name, row in zip(names, times, strict=True)
    ]


def _rate(moved: float | None, ms: float) -> float | None:
    return moved / ms / 1e6 if moved and ms else None
