"""The ledger of what ran, per op, implementation and activation.

It has the number of calls, the time, the kernels launched and the number of values clipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class Ran(NamedTuple):
    op: str
    implementation: str  # "triton:gemm"
    activation: str = ""  # of ops that can round them: bf16, mxfp8 or mxfp4


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel as it was launched; two with the same artefact are the same machine code."""

    kernel: str  # as a profiler names it
    tile: str
    artefact: str  # hash of the compiled kernel
    compiled: Any = field(compare=False, repr=False)  # Triton's compiled kernel or a CudaEntry; None: interpreted
    is_library: bool = False  # a call into a library, whose kernels a profiler shows under names of their own

    def __hash__(self) -> int:
        return hash(self.artefact)  # a string caches its hash, which every launch needs


@dataclass(slots=True)
class Entry:
    calls: int = 0
    seconds: float = 0.0
    launches: dict[Launch, int] = field(default_factory=dict)
    counters: list[torch.Tensor] = field(default_factory=list)  # [1] int64 each, on the device

    @property
    def clipped(self) -> int | None:
        """Number of values too large for their stored type since the counters were made; None without a counter.

        Waits for the device.
        """
        return sum(int(counter) for counter in self.counters) if self.counters else None


_current: ContextVar[Entry | None] = ContextVar("entry of the op that runs", default=None)

Watcher = Callable[[Launch], None]
_watcher: ContextVar[Watcher | None] = ContextVar("callback for new launches", default=None)


def note(launch: Launch) -> None:
    """Counts a launch for the running op; does nothing outside an op (probes, tests)."""
    if (entry := _current.get()) is None:
        return
    count = entry.launches.get(launch, 0)
    if not count and (watcher := _watcher.get()) is not None:
        watcher(launch)
    entry.launches[launch] = count + 1


def note_clipped(counter: torch.Tensor) -> None:
    """Registers `counter` for clipped values of the running op; it is read on request, not now."""
    entry = _current.get()
    if entry is not None and not any(counter is known for known in entry.counters):
        entry.counters.append(counter)


@contextmanager
def watch_launches(watcher: Watcher) -> Iterator[None]:
    """Calls `watcher` with each kernel that is new to the ledger; an exception that it raises ends the op."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


class Ledger:
    """Counts calls; `timed` also measures them, which on a GPU waits for the device after each call."""

    def __init__(self, *, timed: bool = False) -> None:
        self.timed = timed
        self.entries: dict[Ran, Entry] = {}

    def run(self, ran: Ran, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        entry = self.entries.get(ran)
        if entry is None:
            entry = self.entries[ran] = Entry()
        entry.calls += 1
        token = _current.set(entry)
        try:
            return self._timed(entry, function, *args, **kwargs) if self.timed else function(*args, **kwargs)
        finally:
            _current.reset(token)

    def launches(self) -> dict[str, int]:
        """Counts the launches of each kernel, by the name that a profiler gives it, but no calls of libraries."""
        counts: dict[str, int] = {}
        for entry in self.entries.values():
            for launch, count in entry.launches.items():
                if launch.is_library:
                    continue
                counts[launch.kernel] = counts.get(launch.kernel, 0) + count
        return counts

    def clear(self) -> None:
        self.entries.clear()

    def _timed(self, entry: Entry, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        _wait()
        start = time.perf_counter()
        result = function(*args, **kwargs)
        _wait()
        entry.seconds += time.perf_counter() - start
        return result


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
