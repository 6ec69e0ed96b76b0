"""Times ops at the shapes of a model with a cold cache, against ceilings measured in the same run.

A fault that leaves the GPU unusable ends the measurements: the remaining ones are listed as not run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from firesteel.config import Config
from firesteel.device import DeviceSpec, available_bytes
from firesteel.errors import KernelError
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.chosen import Chosen
from firesteel.kernels.op.op import REFERENCE, Implementation
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.operands.shapes import ModelShapes
from firesteel.kernels.proof.verify import has_failed, kernel_faults
from firesteel.measure.ops.memory import free_memory, too_large
from firesteel.measure.ops.outcome import Ceilings, Figures, OpOutcome
from firesteel.measure.ops.sweep import (
    MEMORY_SHARE,
    Implementations,
    OpsSweep,
    Required,
    choose,
    order_weights,
    refusal,
)
from firesteel.measure.ops.workloads import OpWorkload
from firesteel.measure.record import Record
from firesteel.measure.roofline.ceiling import matrix_ceiling, read_ceiling
from firesteel.measure.timing import MAX_COPIES, OUTGROW, Timing, find_cache_bytes, time_calls
from firesteel.surroundings import look_again, peak_memory_bytes

SAMPLES = {True: 20, False: 3}  # keyed by is_cuda
WARMUPS = {True: 3, False: 1}
LEAST_CALLS = 8  # per pass, so that it outlasts its launch


def measure_ceilings(device: DeviceSpec) -> Ceilings:
    samples = SAMPLES[device.is_cuda]
    return Ceilings(
        read=read_ceiling(device, samples=samples),
        matrix=matrix_ceiling(device, samples=samples),
        matrix_type=str(device.dtype).removeprefix("torch."),
    )


def save_ceilings(ceilings: Ceilings, device: DeviceSpec, config: Config, out: Path) -> Record:
    """Saves the records of both ceilings and returns the first."""
    records = ceilings.records(device, config)
    for record in records:
        record.save(out)
    return records[0]


def saved(outcomes: Iterable[OpOutcome], around: Record, device: DeviceSpec, out: Path) -> Iterator[OpOutcome]:
    """Yields the outcomes and saves the record of each as soon as it is measured.

    `around` is a record of the same run. Commit and packages are taken from it; the state of the GPU is looked up
    again for each workload, because clocks and temperature change in a long run.
    """
    last_workload = None
    for outcome in outcomes:
        if outcome.figures is not None:
            if outcome.workload != last_workload:
                around = replace(around, surroundings=look_again(around.surroundings, device))
                last_workload = outcome.workload
            outcome.record(around).save(out)
        yield outcome


def bench_ops(
    sweep: OpsSweep,
    device: DeviceSpec,
    ceilings: Ceilings,
    *,
    required: Required | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[OpOutcome]:
    """Measures one workload at a time; `progress` is called with the workloads done and their total."""
    workloads = sweep.workloads(ModelShapes(sweep.spec, device))
    broken = ""
    for done, workload in enumerate(workloads, start=1):
        left = choose(workload.op, device, sweep.implementations)
        wanted = (required or {}).get(workload.op.name)
        for outcome in () if broken else _bench(workload, list(left), device, ceilings, wanted):
            yield outcome
            left.pop(0)
            if outcome.failed and has_failed(device):
                broken = f"{outcome.op} {outcome.implementation} {workload.label}"
                break
        why = f"not run: the device failed earlier in {broken}"
        yield from (_outcome(workload, implementation, why=why) for implementation in left)
        if progress:
            progress(done, len(workloads))


def _bench(
    workload: OpWorkload,
    implementations: Implementations,
    device: DeviceSpec,
    ceilings: Ceilings,
    wanted: Requirement | None,
) -> Iterator[OpOutcome]:
    try:
        free_memory(device)
        why = too_large(workload, device, MEMORY_SHARE)
        inputs = [] if why else draw_inputs(workload, device)
    except kernel_faults() as error:
        yield from (_fault(workload, implementation, error) for implementation in implementations)
        return
    faults: tuple[type[Exception], ...] = (*kernel_faults(), KernelError)
    for implementation in implementations:
        try:
            calls = [] if why else order_weights(implementation, inputs)
            if skipped := why or _refuse(implementation, calls[0]):
                yield _outcome(workload, implementation, why=skipped)
                continue
            if wanted is not None and wanted.verdict is not None and wanted.names(implementation.name):
                _run_judged(workload, implementation, calls[0], wanted)
            yield _outcome(workload, implementation, _figures(workload, implementation, calls, device, ceilings))
        except faults as error:
            yield _fault(workload, implementation, error)


def _run_judged(
    workload: OpWorkload, implementation: Implementation[Any, Any], args: tuple[Any, ...], wanted: Requirement
) -> None:
    """Calls the op once, as the engine does; raises if the launched machine code is not what is required."""
    Chosen(workload.op, [implementation], Ledger(), required=wanted, activation=workload.activation)(*args)


def _figures(
    workload: OpWorkload,
    implementation: Implementation[Any, Any],
    inputs: list[tuple[Any, ...]],
    device: DeviceSpec,
    ceilings: Ceilings,
) -> Figures:
    if device.is_cuda:
        torch.cuda.reset_peak_memory_stats(device.torch_device)
    first_call_s = _time_first(implementation, inputs[0], device)
    if implementation.plan is not None and device.is_cuda:
        timing, plan_s = _time_planned(implementation.plan, inputs, device)
    else:
        timing, plan_s = _time(implementation, inputs, device), None
    moved = [workload.op.bytes(*args) for args in inputs]
    return Figures(
        timing=timing,
        bytes=sum(moved) / len(moved),
        flops=workload.part.flops,
        rotation_bytes=sum(moved),
        read_gb_s=ceilings.read.rate,
        matrix_tflop_s=ceilings.matrix.rate,
        peak_memory_bytes=peak_memory_bytes(device),
        first_call_s=first_call_s,
        plan_s=plan_s,
    )


def _outcome(
    workload: OpWorkload,
    implementation: Implementation[Any, Any],
    figures: Figures | None = None,
    why: str = "",
    failed: bool = False,
) -> OpOutcome:
    return OpOutcome(
        op=workload.op.name,
        part=workload.part.label,
        m=workload.m,
        implementation=implementation.name,
        activation=workload.activation,
        figures=figures,
        why=why,
        failed=failed,
    )


def _fault(workload: OpWorkload, implementation: Implementation[Any, Any], error: Exception) -> OpOutcome:
    return _outcome(workload, implementation, why=f"failed: {type(error).__name__}: {error}", failed=True)


def _time_first(implementation: Implementation[Any, Any], args: tuple[Any, ...], device: DeviceSpec) -> float:
    """Returns the seconds that the first call takes, from the host's launch to the device's end."""
    start = time.perf_counter()
    implementation.function(*args)
    if device.is_cuda:
        torch.cuda.synchronize(device.torch_device)
    return time.perf_counter() - start


def _time(implementation: Implementation[Any, Any], inputs: list[tuple[Any, ...]], device: DeviceSpec) -> Timing:
    """Times the calls; a reference is not captured, because it may ask the GPU for sizes, as libraries may."""
    is_reference = implementation.name == REFERENCE
    rounds = -(-LEAST_CALLS // len(inputs)) if device.is_cuda and not is_reference else 1
    return time_calls(
        implementation.function,
        inputs,
        device,
        samples=SAMPLES[device.is_cuda and not is_reference],
        warmups=WARMUPS[device.is_cuda],
        rounds=rounds,
        graph=not is_reference and implementation.can_capture,
    )


def _time_planned(
    plan: Callable[..., Callable[[], Callable[[], Any]]], inputs: list[tuple[Any, ...]], device: DeviceSpec
) -> tuple[Timing, float]:
    """Returns the timing of what is launched, captured, and the mean seconds in which the host plans a call."""
    planners = [plan(*args) for args in inputs]
    start = time.perf_counter()
    launches = [(planner(),) for planner in planners]
    plan_s = (time.perf_counter() - start) / len(inputs)
    timing = time_calls(
        lambda launch: launch(),
        launches,
        device,
        samples=SAMPLES[True],
        warmups=WARMUPS[True],
        rounds=-(-LEAST_CALLS // len(inputs)),
    )
    return timing, plan_s


def draw_inputs(workload: OpWorkload, device: DeviceSpec) -> list[tuple[Any, ...]]:
    """Draws arguments until they exceed the cache, or take their share of memory."""
    start = available_bytes(device)
    inputs = [workload.part.draw()]
    enough = OUTGROW * find_cache_bytes(device) / max(workload.op.bytes(*inputs[0]), 1)
    while len(inputs) < min(enough, MAX_COPIES) and available_bytes(device) > (1 - MEMORY_SHARE) * start:
        inputs.append(workload.part.draw())
    return inputs


def _refuse(implementation: Implementation[Any, Any], args: tuple[Any, ...]) -> str | None:
    why = refusal(implementation, args)
    return None if why is None else f"refused: {why}"
