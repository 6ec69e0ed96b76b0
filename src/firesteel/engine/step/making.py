"""What making the steps of a store costs, and how many were made while requests waited for them."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from firesteel.model.graphs import StepMemory

_log = logging.getLogger(__name__)
S = TypeVar("S")
Size = TypeVar("Size")


class MeasuredStore:
    """Base of stores that make steps at first use, or before."""

    def __init__(self, memory: StepMemory) -> None:
        """Steps are captured, if at all, in `memory`."""
        self.memory = memory
        self.is_prepared = False  # all steps are made; a step made after that is late
        self.num_late = 0
        self.seconds = 0.0  # spent on making steps
        self.num_bytes = 0  # device memory that torch has held for captured ones since

    def _measured(self, make: Callable[[], S], what: Callable[[S], str], is_captured: Callable[[S], bool]) -> S:
        """Returns what `make` returns; measures and counts it."""
        start, held = time.perf_counter(), self.memory.held_bytes
        ready = make()
        seconds, taken = time.perf_counter() - start, max(self.memory.held_bytes - held, 0)
        self.seconds += seconds
        self.num_bytes += taken if is_captured(ready) else 0
        _log.info("made %s: %.2f s, %d MiB", what(ready), seconds, taken >> 20)
        if self.is_prepared:
            self.num_late += 1
            _log.warning(
                "%s was made while requests were served, which delayed them by %.2f s", what(ready), seconds
            )
        return ready


class PaddedStore(MeasuredStore, ABC, Generic[Size, S]):
    """Base of stores with a step for each padded size."""

    captures: bool  # steps are captured

    def __init__(self, memory: StepMemory) -> None:
        super().__init__(memory)
        self._ready: dict[Size, S] = {}

    def __len__(self) -> int:
        """Returns the number of steps made so far."""
        return len(self._ready)

    @abstractmethod
    def sizes(self) -> list[Size]:
        """Returns the sizes of all steps that may be needed, the largest last."""

    @abstractmethod
    def _make(self, size: Size) -> S:
        """Makes a step."""

    @abstractmethod
    def _describe(self, size: Size) -> str:
        """Returns a noun phrase for a step."""

    @torch.inference_mode()
    def prepare(self, progress: Callable[[], None] = lambda: None) -> None:
        """Makes the steps of all sizes and calls `progress` after each.

        The largest comes first, so that the others reuse its memory.
        """
        for size in reversed(self.sizes()):
            self._get(size)
            progress()
        self.is_prepared = True

    def _get(self, size: Size) -> S:
        if size not in self._ready:
            what = self._describe(size)
            self._ready[size] = self._measured(lambda: self._make(size), lambda _: what, lambda _: self.captures)
        return self._ready[size]
