"""Times ops at a model's shapes with a cold cache, against a ceiling measured in the same run; knows no engine.

A fault that the GPU does not forget ends the measuring: what would have come after is listed as not run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from firesteel.device import DeviceSpec, available_bytes
from firesteel.errors import KernelError
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.op import REFERENCE, Chosen, Implementation, Op
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.proof.prove import check_here
from firesteel.kernels.proof.verify import has_failed, kernel_faults
from firesteel.measure.ops.memory import free_memory, too_large
from firesteel.measure.ops.outcome import Ceilings, Figures, OpOutcome
from firesteel.measure.ops.shapes import ModelShapes
from firesteel.measure.ops.workloads import OpWorkload, list_workloads
from firesteel.measure.roofline.ceiling import matrix_ceiling, read_ceiling
from firesteel.measure.timing import MAX_COPIES, OUTGROW, Timing, find_cache_bytes, time_calls
from firesteel.model.spec import ModelSpec
from firesteel.surroundings import peak_memory_bytes

SAMPLES = {True: 20, False: 3}  # by is_cuda
WARMUPS = {True: 3, False: 1}
LEAST_CALLS = 8  # in a pass, so that it outlasts its launch
MEMORY_SHARE = 0.5  # of what is free, that arguments may take
Required = Mapping[str, Requirement]  # by op


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsSweep:
    spec: ModelSpec
    ops: tuple[Op[Any, Any], ...]
    ms: tuple[int, ...]
    activations: tuple[str, ...] = ("bf16",)
    implementations: tuple[str, ...] = ()  # families or whole names; none is all but a GPU's reference


def measure_ceilings(device: DeviceSpec) -> Ceilings:
    samples = SAMPLES[device.is_cuda]
    return Ceilings(
        read=read_ceiling(device, samples=samples), matrix=matrix_ceiling(device, samples=samples),
        matrix_type=str(device.dtype).removeprefix("torch."),
    )  # fmt: skip


def check_required(plan: OpsSweep, device: DeviceSpec, required: Required) -> None:
    """Raises unless every requirement would be measured here: on this GPU, as that machine code, and at every M."""
    shapes = ModelShapes(plan.spec, device)
    for op in (one for one in plan.ops if one.name in required):
        wanted = required[op.name]
        named = _usable(op, device, wanted, plan.implementations)
        if not list_plan(replace(plan, ops=(op,)), shapes):
            asked = f"--activation {', '.join(plan.activations)} and --m {', '.join(map(str, plan.ms))}"
            raise KernelError(f"{wanted} is required, but {op.name} is not measured with {asked}: name others")
        for activation in plan.activations:
            if wanted.verdict is not None:
                check_here(op, device, wanted, activation)
            for m in plan.ms:
                _check_taken(wanted, named, list(list_workloads(op, m, activation, shapes)), device)


def check_measured(outcomes: Iterable[OpOutcome], required: Required) -> None:
    """Raises unless what is required, which `check_required` let pass, has figures at every M and activation."""
    cases: dict[tuple[str, int, str], list[OpOutcome]] = {}
    for one in outcomes:
        if one.op in required and required[one.op].names(one.implementation):
            cases.setdefault((one.op, one.m, one.activation), []).append(one)
    for (op, m, activation), found in cases.items():
        if not any(one.figures for one in found):
            at = " ".join(filter(None, (f"M={m}", activation)))
            raise KernelError(f"{required[op]} is required, but at {at} it was not measured: {found[0].why}")


def _usable(
    op: Op[Any, Any], device: DeviceSpec, wanted: Requirement, implementations: tuple[str, ...]
) -> list[Implementation[Any, Any]]:
    named = [one for one in op.implementations.values() if wanted.names(one.name)]
    if not named:
        raise KernelError(f"{wanted} is required, but {op.name} has only {', '.join(op.implementations)}")
    if all(why := [one.needs(device) for one in named]):
        raise KernelError(f"{wanted} is required, but it {why[0]}")
    asked = [one for one in named if one in choose(op, device, implementations)]
    if not asked:
        cure = f"add --implementation {wanted.implementation}"
        raise KernelError(f"{wanted} is required, but is not among what is measured: {cure}")
    return asked


def _check_taken(
    wanted: Requirement, named: list[Implementation[Any, Any]], workloads: list[OpWorkload], device: DeviceSpec
) -> None:
    """Of the parts at one M, memory has room for one at least that the required implementation takes."""
    refusals: list[str | None] = []
    for workload in workloads:
        if why := too_large(workload, device, MEMORY_SHARE):
            refusals.append(f"is {why}")
            continue
        args = workload.part.draw()
        refusals += [_refusal(one, args) for one in named]
    if refusals and all(refusals):
        raise KernelError(f"{wanted} is required, but at {workloads[0].label} {named[0].name} {refusals[0]}")


def list_plan(plan: OpsSweep, shapes: ModelShapes) -> list[OpWorkload]:
    """Nothing is drawn yet."""
    wanted = itertools.product(plan.ops, plan.activations, plan.ms)
    return [one for op, activation, m in wanted for one in list_workloads(op, m, activation, shapes)]


def bench_ops(
    plan: OpsSweep,
    device: DeviceSpec,
    ceilings: Ceilings,
    *,
    required: Required | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[OpOutcome]:
    """One at a time; `progress` is called with the workloads done and the workloads in all."""
    workloads = list_plan(plan, ModelShapes(plan.spec, device))
    broken = ""
    for done, workload in enumerate(workloads, start=1):
        left = choose(workload.op, device, plan.implementations)
        wanted = (required or {}).get(workload.op.name)
        for outcome in () if broken else _bench(workload, list(left), device, ceilings, wanted):
            yield outcome
            left.pop(0)
            if outcome.failed and has_failed(device):
                broken = f"{outcome.op} {outcome.implementation} {workload.label}"
                break
        yield from (_outcome(workload, one, why=f"not run: the device failed earlier in {broken}") for one in left)
        if progress:
            progress(done, len(workloads))


def choose(op: Op[Any, Any], device: DeviceSpec, wanted: tuple[str, ...] = ()) -> list[Implementation[Any, Any]]:
    """What can run here and was asked for; on a GPU the reference only if asked for."""
    usable = [one for one in op.implementations.values() if one.needs(device) is None]
    if wanted:
        return [one for one in usable if {one.name, one.name.partition(":")[0]} & set(wanted)]
    return [one for one in usable if not device.is_cuda or one.name != REFERENCE]


def check_implementations(plan: OpsSweep, device: DeviceSpec) -> None:
    """Raises for a name that no op has, or that cannot run here."""
    for name in plan.implementations:
        if not any(choose(op, device, (name,)) for op in plan.ops):
            here = {one.name for op in plan.ops for one in choose(op, device, ()) or op.implementations.values()}
            raise KernelError(f"no op runs {name!r} on {device.name}; here there is {', '.join(sorted(here))}")


def _bench(
    workload: OpWorkload,
    implementations: list[Implementation[Any, Any]],
    device: DeviceSpec,
    ceilings: Ceilings,
    wanted: Requirement | None,
) -> Iterator[OpOutcome]:
    try:
        free_memory(device)
        why = too_large(workload, device, MEMORY_SHARE)
        inputs = [] if why else draw_inputs(workload, device)
    except kernel_faults() as error:
        yield from (_fault(workload, one, error) for one in implementations)
        return
    faults: tuple[type[Exception], ...] = (*kernel_faults(), KernelError)
    for one in implementations:
        if refusal := why or _refuse(one, inputs[0]):
            yield _outcome(workload, one, why=refusal)
            continue
        try:
            if wanted is not None and wanted.verdict is not None and wanted.names(one.name):
                _run_judged(workload, one, inputs[0], wanted)
            yield _outcome(workload, one, _figures(workload, one, inputs, device, ceilings))
        except faults as error:
            yield _fault(workload, one, error)


def _run_judged(
    workload: OpWorkload, one: Implementation[Any, Any], args: tuple[Any, ...], wanted: Requirement
) -> None:
    """Once, as the engine does: raises where what is launched is not the machine code that is required."""
    Chosen(workload.op, [one], Ledger(), required=wanted, activation=workload.activation)(*args)


def _figures(
    workload: OpWorkload,
    implementation: Implementation[Any, Any],
    inputs: list[tuple[Any, ...]],
    device: DeviceSpec,
    ceilings: Ceilings,
) -> Figures:
    if device.is_cuda:
        torch.cuda.reset_peak_memory_stats(device.torch_device)
    timing = _time(implementation, inputs, device)
    moved = [workload.op.bytes(*args) for args in inputs]
    return Figures(
        timing=timing, bytes=sum(moved) / len(moved), flops=workload.part.flops, rotation_bytes=sum(moved),
        read_gb_s=ceilings.read.rate, matrix_tflop_s=ceilings.matrix.rate,
        peak_memory_bytes=peak_memory_bytes(device),
    )  # fmt: skip


def _outcome(
    workload: OpWorkload,
    implementation: Implementation[Any, Any],
    figures: Figures | None = None,
    why: str = "",
    failed: bool = False,
) -> OpOutcome:
    return OpOutcome(
        op=workload.op.name, part=workload.part.label, m=workload.m, implementation=implementation.name,
        activation=workload.activation, figures=figures, why=why, failed=failed,
    )  # fmt: skip


def _fault(workload: OpWorkload, implementation: Implementation[Any, Any], error: Exception) -> OpOutcome:
    return _outcome(workload, implementation, why=f"failed: {type(error).__name__}: {error}", failed=True)


def _time(implementation: Implementation[Any, Any], inputs: list[tuple[Any, ...]], device: DeviceSpec) -> Timing:
    """The reference may ask the GPU for sizes, which a graph cannot hold."""
    is_reference = implementation.name == REFERENCE
    rounds = -(-LEAST_CALLS // len(inputs)) if device.is_cuda and not is_reference else 1
    return time_calls(
        implementation.function, inputs, device, samples=SAMPLES[device.is_cuda and not is_reference],
        warmups=WARMUPS[device.is_cuda], rounds=rounds, graph=not is_reference,
    )  # fmt: skip


def draw_inputs(workload: OpWorkload, device: DeviceSpec) -> list[tuple[Any, ...]]:
    """As many arguments as outgrow the cache, if memory has room for them."""
    start = available_bytes(device)
    inputs = [workload.part.draw()]
    enough = OUTGROW * find_cache_bytes(device) / max(workload.op.bytes(*inputs[0]), 1)
    while len(inputs) < min(enough, MAX_COPIES) and available_bytes(device) > (1 - MEMORY_SHARE) * start:
        inputs.append(workload.part.draw())
    return inputs


def _refuse(implementation: Implementation[Any, Any], args: tuple[Any, ...]) -> str | None:
    refusal = _refusal(implementation, args)
    return None if refusal is None else f"refused: {refusal}"


def _refusal(implementation: Implementation[Any, Any], args: tuple[Any, ...]) -> str | None:
    return implementation.accepts(*args) if implementation.accepts else None
