"""A step captured into one CUDA graph and replayed; knows no op and no request.

The first calls of a step compile, load and allocate, which a capture must not: they run before it. What a replay
runs is counted in the ledger as if it had been called; what a capture only writes down is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.kernels.ledger import Entry, Launch, Ledger, Ran

WARMUPS = 2


class GraphError(UserError):
    """A graph that cannot be captured here."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Calls and launches of each op."""

    calls: dict[Ran, int]
    launches: dict[tuple[Ran, Launch], int]

    @classmethod
    def of(cls, ledger: Ledger) -> Counts:
        calls = {ran: entry.calls for ran, entry in ledger.entries.items()}
        launches = {(ran, one): n for ran, entry in ledger.entries.items() for one, n in entry.launches.items()}
        return cls(calls, launches)

    def since(self, before: Counts) -> Counts:
        calls = {ran: n - before.calls.get(ran, 0) for ran, n in self.calls.items()}
        launches = {key: n - before.launches.get(key, 0) for key, n in self.launches.items()}
        return Counts({ran: n for ran, n in calls.items() if n}, {key: n for key, n in launches.items() if n})

    def add_to(self, ledger: Ledger, times: int = 1) -> None:
        for ran, count in self.calls.items():
            ledger.entries.setdefault(ran, Entry()).calls += times * count
        for (ran, launch), count in self.launches.items():
            launches = ledger.entries[ran].launches
            launches[launch] = launches.get(launch, 0) + times * count


class StepGraph:
    """`run` as one launch; it must read and write the same tensors every time.

    Before the capture it runs `WARMUPS` times, or `warm_up` once, which launches the same kernels; `undo` then puts
    its inputs back. Graphs of one `pool` share memory between their inputs and outputs: only one of them may run at
    a time.
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
            _run_aside([run] * WARMUPS if warm_up is None else [warm_up])
            undo()
            before = Counts.of(ledger)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool):
                self.outputs = run()
        self.counts = Counts.of(ledger).since(before)
        self.counts.add_to(ledger, -1)

    def replay(self) -> object:
        """What `run` returned, in tensors that the next replay overwrites; waits for nothing."""
        self.graph.replay()
        self.counts.add_to(self.ledger)
        return self.outputs


class StepMemory:
    """What the steps of one engine share, as only one of them runs at a time; made when first asked for."""

    def __init__(self, device: DeviceSpec, *, most_requests: int, vocab_size: int) -> None:
        self.device = device
        self._shape = (most_requests, vocab_size)
        self._logits: Tensor | None = None
        self._pool: Any = None

    @property
    def logits(self) -> Tensor:
        """Logits [R, V] in fp32 that all steps share."""
        if self._logits is None:
            self._logits = torch.empty(self._shape, dtype=torch.float32, device=self.device.torch_device)
        return self._logits

    @property
    def pool(self) -> Any:
        """Of graphs."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    @property
    def held_bytes(self) -> int:
        """That torch holds on the device for this process alone: others may share the GPU."""
        return torch.cuda.memory_reserved(self.device.torch_device) if self.device.is_cuda else 0


def _run_aside(runs: Sequence[Callable[[], object]]) -> None:
    """On a side stream, as captures want it."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for run in runs:
            run()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
