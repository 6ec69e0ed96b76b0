"""Streams and events of the late GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tests.late.gpu import LateGpu


class LateEvent:
    def __init__(self, gpu: LateGpu) -> None:
        self.gpu, self.is_done = gpu, True

    def record(self, stream: LateStream | None = None) -> None:
        self.is_done = False
        self.gpu.add(self._finish, stream)

    def _finish(self) -> None:
        self.is_done = True

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.gpu.refuse_in_capture("a wait for an event")
        self.gpu.run_until(lambda: self.is_done)


class LateStream:
    """Launches in order. One that is an event waits until that is done."""

    def __init__(self, gpu: LateGpu) -> None:
        self.gpu = gpu
        self.launched: deque[Callable[[], None] | LateEvent] = deque()
        gpu.streams.append(self)

    @property
    def can_run(self) -> bool:
        first = self.launched[0] if self.launched else None
        return first is not None and (not isinstance(first, LateEvent) or first.is_done)

    def run_first(self) -> None:
        first = self.launched.popleft()
        if not isinstance(first, LateEvent):
            with torch.inference_mode(), torch._C._DisableTorchDispatch():
                first()

    def wait_stream(self, other: LateStream) -> None:
        event = LateEvent(self.gpu)
        event.record(other)
        self.launched.append(event)
