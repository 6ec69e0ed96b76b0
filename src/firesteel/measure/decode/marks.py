"""When steps that are launched one after the other begin and end on the device; knows no step.

marks = StepMarks(device)
marks.before(); launch(); marks.after()    # for each step
marks.read()                               # waits for the device
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import torch

from firesteel.device import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Milliseconds, a step each but for the first."""

    steps_ms: tuple[float, ...]  # from the end of the one before to its own
    gaps_ms: tuple[float, ...]  # from the end of the one before to its beginning

    @property
    def idle_share(self) -> float:
        return sum(self.gaps_ms) / sum(self.steps_ms)


class StepMarks:
    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._begins: list[torch.cuda.Event | float] = []
        self._ends: list[torch.cuda.Event | float] = []

    def before(self) -> None:
        self._begins.append(self._now())

    def after(self) -> None:
        self._ends.append(self._now())

    def clear(self) -> None:
        self._begins.clear()
        self._ends.clear()

    def read(self) -> StepTimes:
        if self.device.is_cuda:
            torch.cuda.synchronize(self.device.torch_device)
        ends = itertools.pairwise(self._ends)
        return StepTimes(
            steps_ms=tuple(_between(one, other) for one, other in ends),
            gaps_ms=tuple(_between(end, begin) for end, begin in zip(self._ends, self._begins[1:], strict=False)),
        )

    def _now(self) -> torch.cuda.Event | float:
        if not self.device.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(begin: torch.cuda.Event | float, end: torch.cuda.Event | float) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float) and isinstance(end, float)
        return 1e3 * (end - begin)
    return float(begin.elapsed_time(end))
