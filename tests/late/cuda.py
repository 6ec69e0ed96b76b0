"""torch.cuda, models and kernels on a late GPU.

Graphs of one pool share memory: a replay overwrites what the others have left there. A graph reads tensors made
before its capture where they were, so that they must live as long as it.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import register_dataclass, tree_map_only

from firesteel.device import DeviceSpec, count_sms, find_capability
from firesteel.engine.step.step_store import FusedOps
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.op import REFERENCE
from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.registry import NETWORK_OPS, find_op
from firesteel.kernels.stream.plan import _read_machine
from firesteel.model.decode_ops import NAMES, DecodeOps
from tests.late.gpu import HERE, LateGpu, LateTensor, Memory, NotCaptured, fill, find_late
from tests.late.stream import LateEvent, LateStream

register_dataclass(Fed)  # a result of ops
ROOM = 1 << 36  # bytes
PLAIN = (str, int, float, bool, type(None), torch.dtype)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Float32Gpu(DeviceSpec):
    """Computes in the type of a CPU, so that results can be compared."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32


DEVICE = Float32Gpu(
    torch_device=HERE,
    name="a late GPU",
    capability=(9, 0),
    num_sms=132,
    l2_bytes=1 << 25,
    memory_bytes=ROOM,
    is_unified=False,
)


class Place(int):
    """The number of an operand that an op returns."""


class LateGraph:
    def __init__(self, gpu: LateGpu) -> None:
        self.gpu = gpu
        self.work: list[Callable[[], None]] = []
        self.own: list[tuple[weakref.ref[Memory], Tensor]] = []
        self.read: dict[int, weakref.ref[Memory]] = {}  # memory from outside
        self.pool: list[LateGraph] = [self]

    def keep(self, memory: Memory) -> None:
        self.own.append((weakref.ref(memory), memory.inner))

    def watch(self, used: Sequence[LateTensor]) -> None:
        for tensor in used:
            if tensor.memory.graph is not self:
                self.read[id(tensor.memory)] = weakref.ref(tensor.memory)

    def replay(self) -> None:
        if any(memory() is None for memory in self.read.values()):
            raise NotCaptured("the graph reads memory that was freed")
        self.gpu.add(self._run)

    def _run(self) -> None:
        for _, inner in self.own:
            fill(inner)
        others = (other for other in self.pool if other is not self)
        for memory, inner in (kept for other in others for kept in other.own):
            if memory() is not None:
                fill(inner)
        for work in self.work:
            work()


class LateCuda:
    """What the engine uses of torch.cuda."""

    def __init__(self, gpu: LateGpu) -> None:
        self.gpu = gpu
        self.synchronize = lambda device=None: gpu.synchronize()
        self.Event = lambda **_: LateEvent(gpu)
        self.Stream = lambda: LateStream(gpu)
        self.current_stream = lambda: gpu.current
        self.CUDAGraph = lambda: LateGraph(gpu)
        self.graph_pool_handle = list
        self.device = lambda device: nullcontext()
        self.set_device = lambda device: None
        self.current_device = lambda: 0
        self.memory_reserved = self.memory_allocated = lambda device=None: 0
        self.mem_get_info = lambda device=None: (ROOM, ROOM)
        self.is_current_stream_capturing = lambda: gpu.capturing is not None
        self.get_device_capability = lambda device=None: DEVICE.capability
        self.get_device_properties = lambda device=None: SimpleNamespace(
            multi_processor_count=DEVICE.num_sms, major=9, minor=0
        )
        self._lazy_init = lambda: None

    @contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        before, self.gpu.current = self.gpu.current, stream
        yield
        self.gpu.current = before

    @contextmanager
    def graph(self, graph: LateGraph, pool: list[LateGraph] | None = None) -> Iterator[None]:
        self.gpu.synchronize()
        graph.pool = [] if pool is None else pool
        graph.pool.append(graph)
        self.gpu.capturing = graph
        try:
            yield
        finally:
            self.gpu.capturing = None


@contextmanager
def late_cuda(seed: int | None = None) -> Iterator[LateGpu]:
    """Puts a late GPU in the place of torch's."""
    gpu = LateGpu(seed)
    cuda, calls, run = LateCuda(gpu), OpCalls(gpu), Ledger.run

    def run_late(self: Ledger, ran: Any, function: Any, *args: Any) -> Any:
        return run(self, ran, partial(calls.call, find_op(ran.op).reference), *args)

    with pytest.MonkeyPatch.context() as patch, gpu:
        for name in (*vars(cuda), "stream", "graph"):
            if name != "gpu":
                patch.setattr(torch.cuda, name, getattr(cuda, name))
        patch.setattr(Ledger, "run", run_late)
        lifts_only = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor makes its values on the host and then copies them
        try:
            yield gpu
        finally:
            torch._C._set_only_lift_cpu_tensors(lifts_only)
            for cached in (find_capability, count_sms, _read_machine):
                cached.cache_clear()


class OpCalls:
    """Calls of ops, each of which is one launch of the op's reference."""

    def __init__(self, gpu: LateGpu) -> None:
        self.gpu = gpu
        self._likes: dict[Any, Any] = {}

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        used = find_late([*_leaves(args)])
        if not used:
            return function(*args)
        inner = change(args, lambda tensor: tensor.inner if isinstance(tensor, LateTensor) else tensor)
        key = (function, *(leaf if isinstance(leaf, PLAIN) else _describe(leaf) for leaf in _leaves(args)))
        if key not in self._likes:
            self._likes[key] = self._find_results(function, args)
        likes = tree_map_only(Place, lambda place: used[place], self._likes[key])
        return self.gpu.launch(lambda: function(*inner), used, likes)

    def _find_results(self, function: Callable[..., Any], args: Any) -> Any:
        try:
            return _try(function, args, torch.ones_like)
        except IndexError:  # it takes indices apart: let it have real ones
            self.gpu.synchronize()
            return _try(function, args, torch.clone)


def _try(function: Callable[..., Any], args: Any, draw: Callable[[Tensor], Tensor]) -> Any:
    """Returns tensors that look like the op's results, and in place of those that it writes their numbers."""
    drawn: list[Tensor] = []

    def make(tensor: Tensor) -> Tensor:
        drawn.append(draw(tensor.inner) if isinstance(tensor, LateTensor) else tensor)
        return drawn[-1]

    with torch._C._DisableTorchDispatch():
        results = function(*change(args, make))
        places = {tensor.data_ptr(): Place(number) for number, tensor in enumerate(drawn) if tensor.numel()}
        return tree_map_only(Tensor, lambda result: places.get(result.data_ptr(), result.to("meta")), results)


def _describe(tensor: Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype


def _leaves(value: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            yield from _leaves(getattr(value, part.name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def change(value: Any, convert: Callable[[Tensor], Tensor]) -> Any:
    """Returns `value` with all tensors in it converted, also in dataclasses."""
    if isinstance(value, Tensor):
        return convert(value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(change(part, convert) for part in value)
    if not dataclasses.is_dataclass(value) or not [*_tensors(value)]:
        return value
    changed = copy.copy(value)
    for part in dataclasses.fields(value):
        object.__setattr__(changed, part.name, change(getattr(value, part.name), convert))
    return changed


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, Tensor))


def move(gpu: LateGpu, parts: Any, **others: Any) -> Any:
    """Returns a model or a drafter with its tensors on the GPU; `others` are attributes to replace."""
    moved, known = copy.copy(parts), {}

    def put(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = tensor, gpu.put(tensor)
        return known[id(tensor)][1]

    for name, value in vars(parts).items():
        setattr(moved, name, others.get(name, change(value, put)))
    return moved


def open_late(gpu: LateGpu, llm: Any, *, fused: bool = False, device: DeviceSpec | None = None) -> Any:
    """Returns what engines are made from: the model of an `llm` on a CPU, moved to the GPU.

    With a `device` every call must be accepted by a kernel that would run there; the reference computes it.
    """
    pins, here = (REFERENCE, DEVICE) if device is None else (None, device)
    kernels = Kernels(here, {} if pins is None else {op.name: pins for op in NETWORK_OPS}, Ledger())
    model = move(gpu, llm.model, kernels=kernels, dtype=here.dtype)
    asked = {} if pins is None else dict.fromkeys(NAMES, pins)
    ops = DecodeOps.choose(here, kernels.ledger, asked=asked) if fused else None
    store = SimpleNamespace(fused=None if ops is None else FusedOps(ops=ops, is_asked=True))
    return SimpleNamespace(
        model=model,
        device=here,
        spec=llm.spec,
        max_context=llm.max_context,
        kernels=kernels,
        engine=SimpleNamespace(loop=SimpleNamespace(store=store)),
    )


def move_drafter(gpu: LateGpu, drafter: Any, target: Any) -> Any:
    return move(gpu, drafter, model=target, kernels=target.kernels)
