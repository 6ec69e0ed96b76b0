"""What the decode kernels have in common: compiled once a shape, spread over a GPU's SMs, launched; knows no op.

With `dependent` a kernel may begin before the one ahead of it in the stream has ended (programmatic dependent
launch). It waits itself before it reads what that one wrote, but for what its op's contract names.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from firesteel.kernels.ahead import current_ahead
from firesteel.kernels.cuda.source import CudaKernel, CudaSource
from firesteel.kernels.op.op import CudaCode
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.stream.ring import MOST_PART_BYTES, MOST_TOKENS, Stream, plan_stream
from firesteel.kernels.target import SHARED_LIMIT_BYTES, find_target

P = ParamSpec("P")
R = TypeVar("R")
FIRST = (9, 0)  # compute capability with bulk copies, clusters and dependent launch
ROUNDED = "mxfp8"  # what activations can be rounded to
TOKENS = (1, 2, 4, 8)  # that kernels are compiled for
TYPE_NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int64: "int64"}
MOST_FLIGHT = 99  # stages on their way at a time: as many as there are
# of the GPUs that proofs are for: H200, B200, B300, RTX 5090, GB10
SM_COUNTS = {(9, 0): 132, (10, 0): 148, (10, 3): 148, (12, 0): 170, (12, 1): 48}

PLAIN, DELAYS, ALL_ARRIVE = "", "DELAYS", "ALL_ARRIVE"  # builds of kernels: what is defined for csrc/primitives.cuh
_build: ContextVar[str] = ContextVar("the build of kernels", default=PLAIN)
_most_sms: ContextVar[int | None] = ContextVar("SMs that kernels may take", default=None)


@contextmanager
def _built(build: str) -> Iterator[None]:
    token = _build.set(build)
    try:
        yield
    finally:
        _build.reset(token)


def with_delays() -> AbstractContextManager[None]:
    """For tests: kernels launched inside wait for random times where an order that is only likely would show."""
    return _built(DELAYS)


def with_all_arriving() -> AbstractContextManager[None]:
    """For racecheck, to which a lane that arrives at a barrier orders its own accesses alone: in kernels launched
    inside, all lanes arrive where one does so for its warp. They also wait at a cluster's barrier where one warp
    would: the tool never lets that one through."""
    return _built(ALL_ARRIVE)


_kept: list[Callable[[], None]] = []


def keep(plan: Callable[P, R]) -> Callable[P, R]:
    """One result for the same arguments and build, so that a call of an op plans nothing anew."""
    plans = {build: functools.cache(plan) for build in (PLAIN, DELAYS, ALL_ARRIVE)}
    _kept.extend(one.cache_clear for one in plans.values())

    @functools.wraps(plan)
    def find(*args: P.args, **kwargs: P.kwargs) -> R:
        found: R = plans[_build.get()](*args, **kwargs)  # type: ignore[arg-type]
        return found

    return find


def forget_plans() -> None:
    """For tools that change what plans are made from."""
    for forget in _kept:
        forget()


@dataclass(frozen=True, slots=True)
class Machine:
    """What the shape of a kernel depends on."""

    num_sms: int
    shared_bytes: int  # that a program may have; an SM has as much, and what the system reserves

    @property
    def is_large(self) -> bool:
        """Whether two kernels are meant to share an SM: the next one's programs begin beside the last's."""
        return self.shared_bytes > 128 * 1024


def machine_of(capability: tuple[int, int]) -> Machine:
    """A GPU that need not be present."""
    return Machine(SM_COUNTS[capability], SHARED_LIMIT_BYTES[find_target(capability)])


def most_width(machine: Machine) -> int:
    """Tokens that meet an expert's rows at a time; on a small GPU more would not fit its registers."""
    return 8 if machine.is_large else 4


@functools.cache
def _read_machine(device: torch.device) -> Machine:
    found = torch.cuda.get_device_properties(device)
    return Machine(found.multi_processor_count, SHARED_LIMIT_BYTES[find_target((found.major, found.minor))])


def find_machine(device: torch.device) -> Machine:
    found, most = _read_machine(device), _most_sms.get()
    return found if most is None else replace(found, num_sms=min(found.num_sms, most))


@contextmanager
def with_sms(most: int | None) -> Iterator[None]:
    """For tests: kernels launched inside share out their work over no more SMs, so that each has much of it."""
    token = _most_sms.set(most)
    try:
        yield
    finally:
        _most_sms.reset(token)


@dataclass(frozen=True, slots=True)
class Streamed:
    """A kernel that streams weights, and over how many programs it is spread."""

    kernel: CudaKernel
    programs: int
    stream: Stream
    is_paired: bool = False  # two programs of a cluster share a strip

    def refuse(self, machine: Machine) -> str | None:
        """Why the machine cannot run it, or None."""
        if self.kernel.shared_bytes <= machine.shared_bytes:
            return None
        return (
            f"needs {self.kernel.shared_bytes} bytes of shared memory for {self.stream.tokens} tokens, "
            f"this GPU has {machine.shared_bytes}: take fewer tokens a step"
        )

    def launch(self, args: tuple[Any, ...], dependent: bool) -> None:
        cluster = (2,) if self.is_paired else ()
        launch(self.kernel, (self.programs,), args, dependent, cluster=cluster, tile=self.stream)


def plan_streamed(
    name: str, machine: Machine, *, is_fp4: bool, columns: int, tokens: int, stages: int,
    shared: Callable[[Stream], int], strips: int, sizes: Mapping[str, int],
    most_part_bytes: int = MOST_PART_BYTES, may_pair: bool = False,
    flight: int = MOST_FLIGHT, alone: bool = False,
) -> Streamed:  # fmt: skip
    """`strips` of 16 rows in all. An SM has room for the ring of one program only: it gets the next kernel's when
    this one's is done there.
    `may_pair`: two programs can share a strip, which they do where otherwise some had one more than others.
    `flight`: stages that are on their way at a time. `alone`: no other kernel's program need fit beside it."""
    stream = plan_stream(
        is_fp4, columns, tokens, stages=stages, shared=shared, limit=machine.shared_bytes,
        most_part_bytes=most_part_bytes,
    )  # fmt: skip
    shared_bytes = shared(stream)
    programs = min(machine.num_sms, strips)
    is_paired = may_pair and machine.is_large and programs % 2 == 0 and programs < strips < 4 * programs
    defines = {
        **sizes, **stream.defines, "SHARED_BYTES": shared_bytes,
        "CTAS_PER_SM": 1 if alone else _at_once(machine, stream),
        "IS_PAIRED": is_paired, "NUM_FLIGHT": flight, "KEEPS_ALL": machine.is_large, "NUM_CTAS": programs,
    }  # fmt: skip
    kernel = build_kernel(name, defines, threads=stream.threads, shared_bytes=shared_bytes)
    return Streamed(kernel, programs, stream, is_paired)


def _at_once(machine: Machine, stream: Stream) -> int:
    """Programs whose registers fit an SM beside each other; a warp that keeps much of x leaves no room for two."""
    is_light = not stream.is_fp4 or (stream.tokens <= 2 and stream.steps_each <= 3)
    return 2 if is_light and machine.is_large else 1


def build_kernel(name: str, defines: Mapping[str, int], *, threads: int, shared_bytes: int = 0) -> CudaKernel:
    """csrc has a file of the kernel's name; nothing is compiled yet."""
    build = {_build.get(): 1} if _build.get() else {}
    source = _source(f"{name}.cu", tuple(sorted({**defines, **build}.items())))
    return source.kernel(name, threads=threads, shared_bytes=shared_bytes)


@functools.cache
def _source(name: str, defines: tuple[tuple[str, int], ...]) -> CudaSource:
    return CudaSource(name, defines=dict(defines))


def launch(
    kernel: CudaKernel, grid: tuple[int, ...], args: tuple[Any, ...], dependent: bool,
    *, cluster: tuple[int, ...] = (), tile: object = "",
) -> None:  # fmt: skip
    if (ahead := current_ahead()) is not None:
        ahead.add_cuda(kernel.source, find_target(torch.cuda.get_device_capability()))
        return
    kernel.launch(grid=grid, args=args, dependent=dependent, cluster=cluster, tile=tile)


def weight_parts(weight: Tensor | Mxfp4Weight) -> tuple[Tensor, Tensor | None]:
    """Values and scales as kernels take them."""
    return (weight.codes, weight.scales) if isinstance(weight, Mxfp4Weight) else (weight, None)


def refuse_here(x: Tensor, plan: Callable[[Machine], Streamed]) -> str | None:
    """Why the GPU that x is on cannot run what is planned for it, or None."""
    if not x.is_cuda:
        return None
    machine = find_machine(x.device)
    return plan(machine).refuse(machine)


def list_plans(
    capability: tuple[int, int],
    plan: Callable[[Machine, bool, int, bool], Streamed],
    formats: tuple[bool, ...] = (False, True),
    tokens: tuple[int, ...] = TOKENS,
    way: str = "cuda",
) -> Iterator[CudaCode]:
    """What such a GPU launches, of plan(machine, is_fp4, tokens, rounds_x), for each number of tokens that fits."""
    if capability < FIRST:
        return
    machine = machine_of(capability)
    for is_fp4, rounds_x, count in itertools.product(formats, (False, True), tokens):
        if rounds_x and not is_fp4:
            continue
        planned = plan(machine, is_fp4, count, rounds_x)
        if planned.refuse(machine) is None:
            weight = ("mxfp4-weight" if is_fp4 else "bf16-weight") + f" {ROUNDED}" * rounds_x
            yield CudaCode(variant=f"{way} {weight} T={count}", kernel=planned.kernel)


def refuse_tokens(x: Tensor) -> str | None:
    """Why these are not the tokens of a step, or None."""
    if not 1 <= x.shape[0] <= MOST_TOKENS:
        return f"is for 1 to {MOST_TOKENS} tokens, not {x.shape[0]}"
    return None


def refuse_rounding(weight: Tensor | Mxfp4Weight | None, activation: str) -> str | None:
    """Why activations are not rounded so before these weights, or None; None are packed ones."""
    if activation == "bf16":
        return None
    if activation != ROUNDED:
        return f"rounds activations to {ROUNDED}, not to {activation}"
    return f"rounds activations to {ROUNDED} only before MXFP4 weights" if isinstance(weight, Tensor) else None


def refuse_types(*tensors: Tensor | None, wanted: torch.dtype = torch.bfloat16) -> str | None:
    """Why some are of another type, which kernels would not see, or None."""
    wrong = [one.dtype for one in tensors if one is not None and one.dtype != wanted]
    return f"computes with {TYPE_NAMES[wanted]}, not {wrong[0]}" if wrong else None


def refuse_pages(k_pages: Tensor, v_pages: Tensor) -> str | None:
    """Why keys and values are not held so, or None."""
    allowed = (torch.bfloat16, torch.float8_e4m3fn)
    if k_pages.dtype in allowed and k_pages.dtype == v_pages.dtype:
        return None
    return f"keeps keys and values in bf16 or fp8 e4m3 pages, not in {k_pages.dtype} and {v_pages.dtype}"


def refuse_layout(*tensors: Tensor | None) -> str | None:
    """Why these cannot be read sixteen bytes at a time, or None."""
    if any(one.data_ptr() % 16 for one in tensors if one is not None):
        return "wants tensors that begin at a multiple of 16 bytes"
    return refuse_strides(*tensors)


def refuse_strides(*tensors: Tensor | None) -> str | None:
    is_whole = all(one.is_contiguous() for one in tensors if one is not None)
    return None if is_whole else "wants contiguous tensors"
