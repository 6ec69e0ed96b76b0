"""Times ops at a model's shapes with a cold cache, against a ceiling measured in the same run; knows no engine.

A share is of the read ceiling or of the matrix rate, whichever the call is closer to: that one bounds it.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from firesteel.config import Config
from firesteel.device import DeviceSpec, available_bytes
from firesteel.errors import KernelError
from firesteel.kernels.op import REFERENCE, Implementation, Op
from firesteel.kernels.prove import check_here
from firesteel.kernels.requirement import Requirement
from firesteel.kernels.verify import kernel_faults
from firesteel.measure.ceiling import Ceiling, matrix_ceiling, read_ceiling
from firesteel.measure.record import Record
from firesteel.measure.surroundings import peak_memory_bytes
from firesteel.measure.timing import MAX_COPIES, OUTGROW, Timing, find_cache_bytes, time_calls
from firesteel.measure.workloads import SEED, Shapes, Workload, list_workloads
from firesteel.model.spec import ModelSpec

SAMPLES = {True: 20, False: 3}  # by is_cuda
WARMUPS = {True: 3, False: 1}
LEAST_CALLS = 8  # in a pass, so that it outlasts its launch
MEMORY_SHARE = 0.5  # of what is free, that arguments may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    spec: ModelSpec
    ops: tuple[Op[Any, Any], ...]
    ms: tuple[int, ...]
    activations: tuple[str, ...] = ("bf16",)
    implementations: tuple[str, ...] = ()  # families or whole names; none is all but a GPU's reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    read: Ceiling
    matrix: Ceiling
    matrix_type: str

    def records(self, device: DeviceSpec, config: Config) -> list[Record]:
        return [
            Record.now(
                device, config, name=name, unit="s", samples=ceiling.timing.samples_s,
                warmups=ceiling.timing.warmups,
                parameters={"work": ceiling.work, "rate": ceiling.rate, "rate_unit": ceiling.unit},
            )
            for name, ceiling in (("read ceiling", self.read), (f"matrix rate {self.matrix_type}", self.matrix))
        ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    timing: Timing
    bytes: float  # a call must move, the mean over the rotation
    flops: float
    rotation_bytes: float  # read before the same memory comes round again
    read_gb_s: float  # the ceilings
    matrix_tflop_s: float

    @property
    def median_s(self) -> float:
        return self.timing.median_s

    @property
    def gb_s(self) -> float:
        return self.bytes / self.median_s / 1e9

    @property
    def tflop_s(self) -> float:
        return self.flops / self.median_s / 1e12

    @property
    def share(self) -> float:
        return max(self.gb_s / self.read_gb_s, self.tflop_s / self.matrix_tflop_s)

    @property
    def bound(self) -> str:
        return "read" if self.gb_s / self.read_gb_s >= self.tflop_s / self.matrix_tflop_s else "matrix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one implementation on one workload: figures, or why there are none."""

    op: str
    part: str
    m: int
    implementation: str
    activation: str
    figures: Figures | None = None
    why: str = ""
    failed: bool = False  # it broke; otherwise it refused the arguments, or they need too much memory

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "op": self.op, "part": self.part, "m": self.m, "implementation": self.implementation,
            "activation": self.activation, "why": self.why, "failed": self.failed,
        }  # fmt: skip
        if (one := self.figures) is not None:
            found |= {
                "median_s": one.median_s, "bytes": one.bytes, "flops": one.flops, "gb_s": one.gb_s,
                "tflop_s": one.tflop_s, "share": one.share, "bound": one.bound, "read_gb_s": one.read_gb_s,
                "matrix_tflop_s": one.matrix_tflop_s, "rotation_bytes": one.rotation_bytes,
            }  # fmt: skip
        return found

    def record(self, device: DeviceSpec, around: Record) -> Record:
        """In the surroundings of another record of this run: asking the driver each time would take longer."""
        assert self.figures is not None
        timing = self.figures.timing
        known = {key: value for key, value in self.as_dict().items() if key not in ("why", "failed", "median_s")}
        return replace(
            around, name=f"op {self.op}", unit="s", samples=timing.samples_s, warmups=timing.warmups, seed=SEED,
            parameters={**known, "calls_a_sample": timing.calls}, kernels={self.op: self.implementation},
            peak_memory_bytes=peak_memory_bytes(device),
        )  # fmt: skip


def measure_ceilings(device: DeviceSpec) -> Ceilings:
    samples = SAMPLES[device.is_cuda]
    return Ceilings(
        read=read_ceiling(device, samples=samples), matrix=matrix_ceiling(device, samples=samples),
        matrix_type=str(device.dtype).removeprefix("torch."),
    )  # fmt: skip


def check_required(plan: Plan, device: DeviceSpec, required: Mapping[str, Requirement]) -> None:
    """Raises unless every requirement would run here: on this GPU, as that machine code, and at every M."""
    shapes = Shapes(plan.spec, device)
    for op in (one for one in plan.ops if one.name in required):
        wanted = required[op.name]
        named = _usable(op, device, wanted)
        for activation in plan.activations:
            if wanted.verdict is not None:
                check_here(op, device, wanted, activation)
            for m in plan.ms:
                parts = list_workloads(op, m, activation, shapes)
                _check_taken(wanted, named, [one for one in parts if not too_large(one, device)])


def _usable(op: Op[Any, Any], device: DeviceSpec, wanted: Requirement) -> list[Implementation[Any, Any]]:
    named = [one for one in op.implementations.values() if wanted.names(one.name)]
    if not named:
        raise KernelError(f"{wanted} is required, but {op.name} has only {', '.join(op.implementations)}")
    if why := named[0].needs(device):
        raise KernelError(f"{wanted} is required, but it {why}")
    return named


def _check_taken(wanted: Requirement, named: list[Implementation[Any, Any]], workloads: list[Workload]) -> None:
    """Of the parts at one M, the required implementation takes one at least."""
    refusals = []
    for workload in workloads:
        args = workload.part.draw()
        refusals += [_refusal(one, args) for one in named]
    if refusals and all(refusals):
        raise KernelError(f"{wanted} is required, but at {workloads[0].label} {named[0].name} {refusals[0]}")


def list_plan(plan: Plan, shapes: Shapes) -> list[Workload]:
    """Nothing is drawn yet."""
    wanted = itertools.product(plan.ops, plan.activations, plan.ms)
    return [one for op, activation, m in wanted for one in list_workloads(op, m, activation, shapes)]


def bench_ops(
    plan: Plan,
    device: DeviceSpec,
    ceilings: Ceilings,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Outcome]:
    """One at a time; `progress` is called with the workloads done and the workloads in all."""
    workloads = list_plan(plan, Shapes(plan.spec, device))
    for done, workload in enumerate(workloads, start=1):
        yield from _bench(workload, choose(workload.op, device, plan.implementations), device, ceilings)
        if progress:
            progress(done, len(workloads))


def choose(op: Op[Any, Any], device: DeviceSpec, wanted: tuple[str, ...] = ()) -> list[Implementation[Any, Any]]:
    """What can run here and was asked for; on a GPU the reference only if asked for."""
    usable = [one for one in op.implementations.values() if one.needs(device) is None]
    if wanted:
        return [one for one in usable if {one.name, one.name.partition(":")[0]} & set(wanted)]
    return [one for one in usable if not device.is_cuda or one.name != REFERENCE]


def check_implementations(plan: Plan, device: DeviceSpec) -> None:
    """Raises for a name that no op has, or that cannot run here."""
    for name in plan.implementations:
        if not any(choose(op, device, (name,)) for op in plan.ops):
            here = {one.name for op in plan.ops for one in choose(op, device, ()) or op.implementations.values()}
            raise KernelError(f"no op runs {name!r} on {device.name}; here there is {', '.join(sorted(here))}")


def _bench(
    workload: Workload, implementations: list[Implementation[Any, Any]], device: DeviceSpec, ceilings: Ceilings
) -> Iterator[Outcome]:
    def outcome(name: str, figures: Figures | None = None, why: str = "", failed: bool = False) -> Outcome:
        return Outcome(
            op=workload.op.name, part=workload.part.label, m=workload.m, implementation=name,
            activation=workload.activation, figures=figures, why=why, failed=failed,
        )  # fmt: skip

    _free_memory(device)
    if why := too_large(workload, device):
        yield from (outcome(one.name, why=why) for one in implementations)
        return
    inputs = _draw(workload, device)
    for one in implementations:
        if refusal := _refusal(one, inputs[0]):
            yield outcome(one.name, why=f"refused: {refusal}")
            continue
        try:
            timing = _time(one, inputs, device)
        except kernel_faults() as error:
            yield outcome(one.name, why=f"failed: {type(error).__name__}: {error}", failed=True)
            continue
        moved = [workload.op.bytes(*args) for args in inputs]
        yield outcome(
            one.name,
            Figures(
                timing=timing, bytes=sum(moved) / len(moved), flops=workload.part.flops,
                rotation_bytes=sum(moved), read_gb_s=ceilings.read.rate, matrix_tflop_s=ceilings.matrix.rate,
            ),
        )  # fmt: skip


def _time(implementation: Implementation[Any, Any], inputs: list[tuple[Any, ...]], device: DeviceSpec) -> Timing:
    """The reference may ask the GPU for sizes, which a graph cannot hold."""
    is_reference = implementation.name == REFERENCE
    rounds = -(-LEAST_CALLS // len(inputs)) if device.is_cuda and not is_reference else 1
    return time_calls(
        implementation.function, inputs, device, samples=SAMPLES[device.is_cuda and not is_reference],
        warmups=WARMUPS[device.is_cuda], rounds=rounds, graph=not is_reference,
    )  # fmt: skip


def _draw(workload: Workload, device: DeviceSpec) -> list[tuple[Any, ...]]:
    """As many arguments as outgrow the cache, if memory has room for them."""
    start = available_bytes(device)
    inputs = [workload.part.draw()]
    enough = OUTGROW * find_cache_bytes(device) / max(workload.op.bytes(*inputs[0]), 1)
    while len(inputs) < min(enough, MAX_COPIES) and available_bytes(device) > (1 - MEMORY_SHARE) * start:
        inputs.append(workload.part.draw())
    return inputs


def too_large(workload: Workload, device: DeviceSpec, share: float = MEMORY_SHARE) -> str | None:
    free = available_bytes(device)
    if workload.part.held_bytes <= share * free:
        return None
    return f"not run: needs {workload.part.held_bytes / 1e9:.1f} GB, {share * free / 1e9:.1f} GB may be taken"


def _refusal(implementation: Implementation[Any, Any], args: tuple[Any, ...]) -> str | None:
    return implementation.accepts(*args) if implementation.accepts else None


def _free_memory(device: DeviceSpec) -> None:
    """Of the last workload, so that what is available can be seen."""
    gc.collect()
    if device.is_cuda:
        torch.cuda.empty_cache()
