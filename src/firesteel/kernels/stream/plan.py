"""Plans of the decode kernels: what a GPU offers, and how a kernel that streams weights is spread over its SMs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch

from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.stream.build import build_kernel, launch
from firesteel.kernels.stream.ring import MOST_PART_BYTES, MOST_TOKENS, SET_TOKENS, Stream, plan_stream
from firesteel.kernels.target import SHARED_LIMIT_BYTES, find_target

FIRST = (9, 0)  # the first compute capability with bulk copies, clusters and dependent launch
ROUNDED = "mxfp8"  # the format that activations can be rounded to
TOKENS = (1, 2, 4, 8)  # token counts that kernels are compiled for
ALL_STAGES = 99  # more than any ring has: no limit to the stages in flight
# SMs of the GPUs that proofs are for: H200, B200, B300, RTX 5090, GB10
SM_COUNTS = {(9, 0): 132, (10, 0): 148, (10, 3): 148, (12, 0): 170, (12, 1): 48}

_most_sms: ContextVar[int | None] = ContextVar("SMs that kernels may take", default=None)
_stand_in: ContextVar[Machine | None] = ContextVar("the GPU that plans are made for", default=None)


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a GPU that the shape of a kernel depends on."""

    num_sms: int
    shared_bytes: int  # per CTA; an SM has as much, and what the system reserves

    @property
    def is_large(self) -> bool:
        """True if two kernels are meant to share an SM: CTAs of the next kernel begin beside those of the last."""
        return self.shared_bytes > 128 * 1024


def machine_of(capability: tuple[int, int]) -> Machine:
    """Returns the properties of a GPU that need not be present."""
    return Machine(SM_COUNTS[capability], SHARED_LIMIT_BYTES[find_target(capability)])


def most_width(machine: Machine) -> int:
    """Returns how many tokens meet the rows of an expert at a time; the registers of a small GPU hold fewer."""
    return MOST_TOKENS if machine.is_large else SET_TOKENS


@functools.cache
def _read_machine(device: torch.device) -> Machine:
    properties = torch.cuda.get_device_properties(device)
    target = find_target((properties.major, properties.minor))
    return Machine(properties.multi_processor_count, SHARED_LIMIT_BYTES[target])


def find_machine(device: torch.device) -> Machine:
    """Returns the GPU's properties, or those that `with_machine` and `with_sms` set for plans."""
    machine, most = _stand_in.get() or _read_machine(device), _most_sms.get()
    return machine if most is None else replace(machine, num_sms=min(machine.num_sms, most))


@contextmanager
def with_sms(most: int | None) -> Iterator[None]:
    """Spreads kernels launched inside over at most this many SMs, so that tests give each SM much work."""
    token = _most_sms.set(most)
    try:
        yield
    finally:
        _most_sms.reset(token)


@contextmanager
def with_machine(machine: Machine) -> Iterator[None]:
    """Plans kernels launched inside for another, smaller GPU, so that its plans run on the one that is present."""
    token = _stand_in.set(machine)
    try:
        yield
    finally:
        _stand_in.reset(token)


@dataclass(frozen=True, slots=True)
class Streamed:
    """A kernel that streams weights, and the number of CTAs it is spread over."""

    kernel: CudaKernel
    num_ctas: int
    stream: Stream
    is_paired: bool = False  # the two CTAs of a cluster share a strip

    def refuse(self, machine: Machine) -> str | None:
        """Returns why the machine cannot run it, or None."""
        if self.kernel.shared_bytes <= machine.shared_bytes:
            return None
        return (
            f"needs {self.kernel.shared_bytes} bytes of shared memory for {self.stream.tokens} tokens, "
            f"this GPU has {machine.shared_bytes}: take fewer tokens a step"
        )

    def launch(self, args: tuple[Any, ...], dependent: bool) -> None:
        """Launches the kernel; build.launch says what `dependent` means."""
        cluster = (2,) if self.is_paired else ()
        launch(self.kernel, (self.num_ctas,), args, dependent, cluster=cluster, tile=self.stream)


def plan_streamed(
    name: str,
    machine: Machine,
    *,
    is_fp4: bool,
    columns: int,
    tokens: int,
    stages: int,
    shared: Callable[[Stream], int],
    strips: int,
    sizes: Mapping[str, int],
    most_part_bytes: int = MOST_PART_BYTES,
    may_pair: bool = False,
    flight: int = ALL_STAGES,
    alone: bool = False,
    fewest_held: int = MOST_TOKENS,
) -> Streamed:
    """Plans the kernel NAME for `strips` strips of 16 rows in all.

    An SM has room for the ring of one CTA only: the next kernel's CTA gets it when this kernel's is done there.
    `shared` counts the bytes of shared memory that a stream needs.
    `may_pair`: two CTAs can share a strip, which they do if otherwise some would have one strip more than others.
    `flight`: the most stages in flight at a time. `alone`: no CTA of another kernel need fit beside this one's.
    `fewest_held`: the fewest tokens of which the kernel can hold x at a time, before packed weights.
    """
    stream = plan_stream(
        is_fp4,
        columns,
        tokens,
        stages=stages,
        shared=shared,
        limit=machine.shared_bytes,
        most_part_bytes=most_part_bytes,
        fewest_held=fewest_held,
    )
    shared_bytes = shared(stream)
    num_ctas = min(machine.num_sms, strips)
    is_paired = may_pair and machine.is_large and num_ctas % 2 == 0 and num_ctas < strips < 4 * num_ctas
    defines = {
        **sizes,
        **stream.defines,
        "SHARED_BYTES": shared_bytes,
        "CTAS_PER_SM": 1 if alone else _count_at_once(machine, stream),
        "IS_PAIRED": is_paired,
        "NUM_FLIGHT": flight,
        "KEEPS_ALL": machine.is_large,
        "NUM_CTAS": num_ctas,
    }
    kernel = build_kernel(name, defines, threads=stream.threads, shared_bytes=shared_bytes)
    return Streamed(kernel, num_ctas, stream, is_paired)


def _count_at_once(machine: Machine, stream: Stream) -> int:
    """Returns how many CTAs fit the registers of an SM; a warp that keeps much of x leaves no room for two."""
    is_light = not stream.is_fp4 or (stream.tokens <= 2 and stream.steps_each <= 3)
    return 2 if is_light and machine.is_large else 1


def list_plans(
    capability: tuple[int, int],
    plan: Callable[[Machine, bool, int, bool], Streamed],
    formats: tuple[bool, ...] = (False, True),
    tokens: tuple[int, ...] = TOKENS,
    way: str = "cuda",
) -> Iterator[CudaCode]:
    """Lists what such a GPU launches by plan(machine, is_fp4, tokens, rounds_x), for each token count.

    Those that do not fit are listed too: their proofs say so.
    """
    if capability < FIRST:
        return
    machine = machine_of(capability)
    for is_fp4, rounds_x, count in itertools.product(formats, (False, True), tokens):
        if rounds_x and not is_fp4:
            continue
        weight = ("mxfp4-weight" if is_fp4 else "bf16-weight") + f" {ROUNDED}" * rounds_x
        planned = plan(machine, is_fp4, count, rounds_x)
        yield CudaCode(variant=f"{way} {weight} T={show_tokens(count)}", kernel=planned.kernel)


def show_tokens(count: int) -> str:
    """Returns the numbers of tokens that the kernel for `count` is launched for: 5-8 for 8."""
    return str(count) if count <= 2 else f"{count // 2 + 1}-{count}"
