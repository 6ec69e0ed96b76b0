"""A GPU made of CPU memory that computes late, and so shows what the host does too early.

What is launched is queued by stream. It runs when the host waits for it, or some of it at random moments before.
So a copy that does not wait reads the host's memory, or writes it, long after it was launched. New memory holds NaN
or numbers that are too large. Whatever makes the host wait is an error, except for what waits by intent: events,
streams and `synchronize`. A tensor that is not pinned cannot be copied without waiting.

with LateGpu(seed) as gpu:
    x = torch.zeros(3, device="cuda")
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

from tests.late.stream import LateStream

aten = torch.ops.aten
HERE = torch.device("cuda:0")
NEVER = 1 << 40  # in new integers: no index, length or address is as large
MANY = 1 << 16
CHANCE = 0.1  # that some launches run by themselves when something is launched
WAITING = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.is_nonzero, aten._unique2}
COPIES_NUMBERS = {aten.where, aten.index_put, aten.index_put_}  # of the host; other ops take them as arguments
VIEWS_IN_FACT = {aten._unsafe_view}
NOTHING_TO_DO = {aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided}


class HostWaits(Exception):
    """Raised if the host would wait for the GPU."""


class NotCaptured(Exception):
    """Raised if something cannot become part of a graph, or a graph reads memory that is not there any more."""


class Memory:
    """An allocation, which lives as long as tensors in it. `graph` is the one during whose capture it was made."""

    def __init__(self, inner: torch.Tensor, graph: Any = None) -> None:
        self.inner, self.graph = inner, graph


class LateTensor(torch.Tensor):
    """A tensor on the GPU: shape and strides are known, and its values when what writes them has run."""

    inner: torch.Tensor
    memory: Memory
    device = property(lambda self: HERE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor, memory: Memory) -> LateTensor:
        with torch.inference_mode(False):
            tensor = torch.Tensor._make_wrapper_subclass(
                cls,
                inner.size(),
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device="meta",  # a build of torch for CPUs has no views of tensors of CUDA
            )
        tensor.inner, tensor.memory = inner, memory
        return tensor

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        raise HostWaits("tolist waits for the GPU")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tensor of the late GPU outside of it")


class LateGpu(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import all of dynamo, which takes seconds

    def __init__(self, seed: int | None = None) -> None:
        """With a `seed`, launches also run at random moments; without one only when the host waits for them."""
        super().__init__()
        self.random = None if seed is None else random.Random(seed)
        self.streams: list[LateStream] = []
        self.current = LateStream(self)
        self.capturing: Any = None  # the graph that takes what is launched
        self.num_launched = 0
        self._pinned: dict[int, torch.Tensor] = {}  # by address; kept, so that no address comes again

    def add(self, work: Callable[[], None], stream: LateStream | None = None) -> None:
        if self.capturing is not None:
            self.capturing.work.append(work)
            return
        self.num_launched += 1
        (stream or self.current).launched.append(work)
        while self.random is not None and self.random.random() < CHANCE and self._run_some():
            pass

    def run_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            assert self._run_some(), "streams wait for each other"

    def synchronize(self) -> None:
        self.refuse_in_capture("a wait for the device")
        self.run_until(lambda: not any(stream.launched for stream in self.streams))

    def _run_some(self) -> bool:
        ready = [stream for stream in self.streams if stream.can_run]
        if ready:
            (self.random or random).choice(ready).run_first()
        return bool(ready)

    def refuse_in_capture(self, what: str) -> None:
        if self.capturing is not None:
            raise NotCaptured(f"{what} cannot be captured")

    def allocate(self, inner: torch.Tensor) -> LateTensor:
        fill(inner)
        memory = Memory(inner, self.capturing)
        if self.capturing is not None:
            self.capturing.keep(memory)
        return LateTensor(inner, memory)

    def put(self, tensor: torch.Tensor) -> LateTensor:
        """Returns a copy on the GPU, without a launch."""
        return LateTensor(tensor.clone(), Memory(tensor))

    def launch(self, compute: Callable[[], Any], used: Sequence[LateTensor], likes: Any) -> Any:
        """Queues `compute`, which computes on CPU tensors; returns its results to be.

        `likes` look like the results. Those on the GPU are tensors that `compute` writes.
        """
        outputs = tree_map(self._new_output, likes)
        flat, _ = tree_flatten(outputs)
        if self.capturing is not None:
            self.capturing.watch(used)

        def work() -> None:
            for output, result in zip(flat, tree_flatten(compute())[0], strict=True):
                if isinstance(output, LateTensor) and output.inner.data_ptr() != result.data_ptr():
                    output.inner.copy_(result)

        self.add(work)
        return outputs

    def _new_output(self, like: Any) -> Any:
        if not isinstance(like, torch.Tensor) or isinstance(like, LateTensor):
            return like
        strides = like.stride()
        return self.allocate(torch.empty_strided(like.shape, strides, dtype=like.dtype, device="cpu"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        tensors = [part for part in tree_flatten((args, kwargs))[0] if isinstance(part, torch.Tensor)]
        target = kwargs.get("device")
        if packet in (aten.pin_memory, aten._pin_memory):
            return self._pin(args[0].clone())
        if packet is aten.is_pinned:
            return self._is_pinned(args[0])
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        if packet in (aten._to_copy, aten.copy_):
            return self._copy(func, args, kwargs)
        if not any(isinstance(tensor, LateTensor) for tensor in tensors) and (
            target is None or target.type == "cpu"
        ):
            return self._call_on_host(func, args, kwargs)
        if packet in WAITING:
            raise HostWaits(f"{func} waits for the GPU")
        for tensor in tensors:
            if not isinstance(tensor, LateTensor) and tensor.dim():
                raise RuntimeError(f"{func} takes a tensor of the host beside one of the GPU")
            if not isinstance(tensor, LateTensor) and packet in COPIES_NUMBERS:
                raise HostWaits(f"{func} copies a number of the host and waits")
        if any(isinstance(tensor, LateTensor) and tensor.dtype == torch.bool for tensor in _indices(packet, args)):
            raise HostWaits(f"{func} with a mask waits for the GPU")
        return self._call(func, packet, args, kwargs)

    def _call_on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        pinned = self._pin(func(*args, **{**kwargs, "pin_memory": False}))
        fill(pinned)
        return pinned

    def _call(self, func: Any, packet: Any, args: Any, kwargs: Any) -> Any:
        returns, first = func._schema.returns, next(iter(args), None)
        is_view = any(part.alias_info is not None and not part.alias_info.is_write for part in returns)
        if is_view or packet in VIEWS_IN_FACT:
            views = func(*unwrap(args), **unwrap(kwargs))
            return tree_map_only(torch.Tensor, lambda view: LateTensor(view, first.memory), views)
        on_cpu = {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") is not None else kwargs
        on_cpu = {**on_cpu, "pin_memory": False} if "pin_memory" in on_cpu else on_cpu
        if packet in NOTHING_TO_DO:
            return self.allocate(func(*unwrap(args), **unwrap(on_cpu)))

        if func._schema.is_mutable:
            likes = _written(func, args, kwargs)
        else:
            likes = func(*_as_zeros(args), **_as_zeros(on_cpu))
        inner_args, inner_kwargs = unwrap(args), unwrap(on_cpu)
        return self.launch(lambda: func(*inner_args, **inner_kwargs), find_late((args, kwargs)), likes)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Copies between host and GPU, or within one of them."""
        is_new = func.overloadpacket is aten._to_copy
        source = args[0] if is_new else args[1]
        non_blocking = kwargs.get("non_blocking", False) if is_new else (*args, *kwargs.values())[2:3] == (True,)
        wanted = kwargs.get("device") if is_new else None
        from_gpu = isinstance(source, LateTensor)
        to_gpu = isinstance(args[0], LateTensor) if wanted is None else wanted.type != "cpu"
        if not from_gpu and not to_gpu:
            return func(*args, **kwargs)
        if from_gpu != to_gpu:
            host = source if to_gpu else (None if is_new else args[0])
            if not (non_blocking and host is not None and self._is_pinned(host)):
                raise HostWaits(f"{func} between host and GPU waits: non_blocking={non_blocking}, or not pinned")
            self.refuse_in_capture("a copy between host and GPU")
        if is_new:
            like = torch.empty_like(unwrap(source), dtype=kwargs.get("dtype"))
            return self.launch(lambda: unwrap(source).to(like.dtype, copy=True), find_late(source), like)
        return self.launch(lambda: unwrap(args[0]).copy_(unwrap(source)), find_late(args), args[0])

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self._pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return not tensor.numel() or tensor.untyped_storage().data_ptr() in self._pinned


def fill(tensor: torch.Tensor) -> None:
    """Fills with what new memory may hold at worst."""
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)
    elif tensor.dtype == torch.int64:
        tensor.fill_(NEVER)
    elif tensor.dtype == torch.int32:
        tensor.fill_(NEVER >> 12)


def unwrap(args: Any) -> Any:
    return tree_map_only(LateTensor, lambda tensor: tensor.inner, args)


def find_late(args: Any) -> list[LateTensor]:
    return [part for part in tree_flatten(args)[0] if isinstance(part, LateTensor)]


def _as_zeros(args: Any) -> Any:
    return tree_map_only(LateTensor, lambda tensor: _make_zeros(tensor.inner), args)


def _make_zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if like.numel() <= MANY else torch.zeros((), dtype=like.dtype).expand(like.shape)


def _indices(packet: Any, args: Any) -> list[Any]:
    return list(args[1]) if packet in (aten.index, aten.index_put, aten.index_put_) else []


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """Returns the arguments that an op writes, as it returns them."""
    named = dict(zip((part.name for part in func._schema.arguments), args, strict=False)) | kwargs
    given = [named[part.name] for part in func._schema.arguments if part.alias_info and part.alias_info.is_write]
    return given[0] if len(func._schema.returns) == 1 else given or None
