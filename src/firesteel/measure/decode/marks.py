"""Begin and end of consecutive steps on the device.

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

Mark = torch.cuda.Event | float  # an event on a GPU, seconds on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Milliseconds of every step except the first."""

    steps_ms: tuple[float, ...]  # from the end of the previous step to the end of this one
    gaps_ms: tuple[float, ...]  # from the end of the previous step to the beginning of this one

    @property
    def idle_share(self) -> float:
        return sum(self.gaps_ms) / sum(self.steps_ms)


class StepMarks:
    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._begins: list[Mark] = []
        self._ends: list[Mark] = []

    def before(self) -> None:
        self._begins.append(self._now())

    def after(self) -> None:
        self._ends.append(self._now())

    def read(self) -> StepTimes:
        if self.device.is_cuda:
            torch.cuda.synchronize(self.device.torch_device)
        ends = itertools.pairwise(self._ends)
        return StepTimes(
            steps_ms=tuple(_between(previous, end) for previous, end in ends),
            gaps_ms=tuple(_between(end, begin) for end, begin in zip(self._ends, self._begins[1:], strict=False)),
        )

    def _now(self) -> Mark:
        if not self.device.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(begin: Mark, end: Mark) -> float:
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float) and isinstance(end, float)
        return 1e3 * (end - begin)
    return float(begin.elapsed_time(end))
