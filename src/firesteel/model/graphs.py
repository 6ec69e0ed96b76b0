"""A step captured into one CUDA graph and replayed.

The first calls of a step compile, load and allocate, which is not allowed during a capture, so they run before it.
The ledger counts what a replay runs as if it had been called, and does not count what a capture only records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.kernels.ledger import Entry, Launch, Ledger, Ran
from firesteel.types import Taps

WARMUPS = 2


class GraphError(UserError):
    """Raised if a graph cannot be captured on this device or with this ledger."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Calls and launches of each op, as counted by a ledger."""

    calls: dict[Ran, int]
    launches: dict[tuple[Ran, Launch], int]

    @classmethod
    def of(cls, ledger: Ledger) -> Counts:
        calls = {ran: entry.calls for ran, entry in ledger.entries.items()}
        launches = {
            (ran, launch): count
            for ran, entry in ledger.entries.items()
            for launch, count in entry.launches.items()
        }
        return cls(calls, launches)

    def since(self, before: Counts) -> Counts:
        """Returns what was added after `before` was taken."""
        calls = {ran: count - before.calls.get(ran, 0) for ran, count in self.calls.items()}
        launches = {key: count - before.launches.get(key, 0) for key, count in self.launches.items()}
        return Counts(
            {ran: count for ran, count in calls.items() if count},
            {key: count for key, count in launches.items() if count},
        )

    def add_to(self, ledger: Ledger, times: int = 1) -> None:
        for ran, count in self.calls.items():
            ledger.entries.setdefault(ran, Entry()).calls += times * count
        for (ran, launch), count in self.launches.items():
            launches = ledger.entries[ran].launches
            launches[launch] = launches.get(launch, 0) + times * count


@contextmanager
def uncounted(ledger: Ledger) -> Iterator[None]:
    """Removes the calls of its body from the ledger, because nothing is launched there."""
    before = Counts.of(ledger)
    yield
    Counts.of(ledger).since(before).add_to(ledger, -1)
    for ran in [ran for ran in ledger.entries if ran not in before.calls]:
        del ledger.entries[ran]


class StepGraph:
    """Captures `run`, which must read and write the same tensors every time, and replays it as one launch.

    Before the capture, `run` is called `WARMUPS` times, or `warm_up` once, which launches the same kernels; then
    `undo` restores the inputs. Graphs of the same `pool` share memory between their inputs and outputs, so only one
    of them may run at a time.
    """

    def __init__(
        self,
        run: Callable[[], object],
        ledger: Ledger,
        device: DeviceSpec,
        *,
        undo: Callable[[], None],
        warm_up: Callable[[], object] | None = None,
        pool: Any = None,
    ) -> None:
        if not device.is_cuda:
            raise GraphError(f"CUDA graphs need an NVIDIA GPU, this is {device.name}: use --no-cuda-graphs")
        if ledger.timed:
            raise GraphError("a ledger that times each op cannot look into a CUDA graph: use --no-cuda-graphs")
        self.ledger = ledger
        with torch.cuda.device(device.torch_device):
            _run_on_side_stream([run] * WARMUPS if warm_up is None else [warm_up])
            undo()
            before = Counts.of(ledger)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool):
                self.outputs = run()
        self.counts = Counts.of(ledger).since(before)
        self.counts.add_to(ledger, -1)

    def replay(self) -> object:
        """Returns what `run` returned, in tensors that the next replay overwrites; does not wait for the device."""
        self.graph.replay()
        self.counts.add_to(self.ledger)
        return self.outputs


class StepMemory:
    """Memory that the steps of one engine share, as only one of them runs at a time; allocated at first use."""

    def __init__(
        self, device: DeviceSpec, *, most_requests: int, vocab_size: int, taps: Taps | None = None
    ) -> None:
        self.device, self.taps = device, taps
        self._shape = (most_requests, vocab_size)
        self._logits: Tensor | None = None
        self._pool: Any = None

    @property
    def logits(self) -> Tensor:
        """The fp32 logits [R, V] that all steps write."""
        if self._logits is None:
            self._logits = torch.empty(self._shape, dtype=torch.float32, device=self.device.torch_device)
        return self._logits

    def find_taps(self, num_tokens: int) -> Taps | None:
        """Returns the first rows of the taps that all steps write, None if they write none."""
        return None if self.taps is None else replace(self.taps, rows=self.taps.rows[:num_tokens])

    @property
    def pool(self) -> Any:
        """The memory pool of the graphs."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    @property
    def held_bytes(self) -> int:
        """Device memory reserved by torch in this process; other processes may share the GPU."""
        return torch.cuda.memory_reserved(self.device.torch_device) if self.device.is_cuda else 0


def _run_on_side_stream(runs: Sequence[Callable[[], object]]) -> None:
    """Runs the functions on a side stream, as torch requires before a capture."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for run in runs:
            run()
    torch.cuda.current_stream().wait_stream(side_stream)
    torch.cuda.synchronize()
