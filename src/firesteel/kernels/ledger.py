"""What ran: which implementation of which op with which activations, how often, for how long, the compiled kernels
it launched and the values it clipped."""

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
    compiled: Any = field(compare=False, repr=False)  # what Triton compiled or a CudaEntry, None in the interpreter

    def __hash__(self) -> int:
        return hash(self.artefact)  # a string keeps its hash: every launch asks for it


@dataclass(slots=True)
class Entry:
    calls: int = 0
    seconds: float = 0.0
    launches: dict[Launch, int] = field(default_factory=dict)
    counters: list[torch.Tensor] = field(default_factory=list)  # [1] int64 each, on the device

    @property
    def clipped(self) -> int | None:
        """Values too large for what they were stored in, since their counters were made; None if none counts them.

        Waits for the device.
        """
        return sum(int(counter) for counter in self.counters) if self.counters else None


_current: ContextVar[Entry | None] = ContextVar("entry of the op that runs", default=None)

Watcher = Callable[[Launch], None]
_watcher: ContextVar[Watcher | None] = ContextVar("who is told of new launches", default=None)


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
    """Tells `watcher` of each kernel that the ledger does not have yet; what it raises ends the op."""
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
        """How often each kernel was launched, by the name a profiler gives it."""
        counts: dict[str, int] = {}
        for entry in self.entries.values():
            for launch, count in entry.launches.items():
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
