"""Every op against its reference on this machine, on its own samples and at a model's shapes; measures no time.

A fault that the GPU does not forget ends the checks of its process: what would come after is listed as not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.kernels.op.op import REFERENCE, Implementation, Op, Sample
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.proof.isolate import Died, Worker
from firesteel.kernels.proof.verify import (
    Check,
    Status,
    check_sample,
    has_failed,
    kernel_faults,
    list_unusable,
    tensors,
    with_fault,
)
from firesteel.kernels.registry import find_op
from firesteel.measure.ops.memory import free_memory, too_large
from firesteel.measure.ops.shapes import Shapes
from firesteel.measure.ops.workloads import Workload, list_workloads
from firesteel.model.spec import ModelSpec

TOKENS = (1, 7, 64, 320)
# On a GPU as well: tokens choose a tile, and between them these meet every one that up to 8192 tokens choose.
TILE_TOKENS = {"linear": (24, 100, 500, 1000, 4096), "moe_matmul": (12, 24, 100, 191, 1000, 4096), "route": (8192,)}
MEMORY_SHARE = 0.15  # of what is free, for arguments: a check holds up to six copies
DEVICE_FAILED = "the device failed earlier in"
Progress = Callable[[int, int], None]
Implementations = list[Implementation[Any, Any]]


def check_ops(
    ops: tuple[Op[Any, Any], ...],
    device: DeviceSpec,
    spec: ModelSpec,
    *,
    quick: bool = False,
    progress: Progress | None = None,
) -> Iterator[Check]:
    """`quick` ends, for each implementation, activation and set of types, with the first sample that it takes."""
    broken = ""
    for done, op in enumerate(ops, start=1):
        yield from list_unusable(op, device)
        usable = [one for one in op.implementations.values() if one.name != REFERENCE and one.needs(device) is None]
        for check in _check_op(op, usable, device, spec, quick) if usable and not broken else ():
            yield check
            if check.failure and has_failed(device):
                broken = " ".join(filter(None, (check.op, check.implementation, check.sample)))
                break
        if broken:
            why = f"{DEVICE_FAILED} {broken}"
            yield from (Check(op.name, one.name, "all that remain", not_run=why) for one in usable)
        if progress:
            progress(done, len(ops))


def check_apart(
    ops: tuple[Op[Any, Any], ...],
    device: DeviceSpec,
    spec: ModelSpec,
    *,
    quick: bool = False,
    progress: Progress | None = None,
) -> Iterator[Check]:
    """In another process, which is replaced after an op that failed the device or ended it: the next still runs."""
    worker = Worker()
    try:
        for done, op in enumerate(ops, start=1):
            found = worker.call(check_alone, op.name, device, spec, quick)
            if isinstance(found, Died):
                found = [Check(op.name, "", "", failure=found.reason)]
            yield from found
            if any(DEVICE_FAILED in check.why for check in found):
                worker.stop()
            if progress:
                progress(done, len(ops))
    finally:
        worker.stop()


def check_alone(name: str, device: DeviceSpec, spec: ModelSpec, quick: bool) -> list[Check]:
    """Of one op by its name: an op itself does not travel between processes."""
    return list(check_ops((find_op(name),), device, spec, quick=quick))


def _check_op(
    op: Op[Any, Any], usable: Implementations, device: DeviceSpec, spec: ModelSpec, quick: bool
) -> Iterator[Check]:
    ran: set[tuple[Any, ...]] = set()
    refused: dict[tuple[Any, ...], Check] = {}
    for sample in _samples(op, device, spec, TOKENS[:1] if quick else list_tokens(op.name, device)):
        if isinstance(sample, Check):
            yield from (replace(sample, implementation=one.name) for one in usable)
            continue
        for one in usable:
            key = one.name, _activation(op, sample), frozenset(tensor.dtype for tensor in tensors(sample.args))
            if quick and key in ran:
                continue
            found = check_sample(op, one, sample)
            if quick and found.status is Status.REFUSED:
                refused[key] = found
                continue
            ran.add(key)
            yield found
    yield from (check for key, check in refused.items() if key not in ran)


def list_tokens(op: str, device: DeviceSpec) -> tuple[int, ...]:
    """Fewest first; few where no tile runs but under Triton's interpreter, which is slow."""
    return tuple(sorted({*TOKENS, *(TILE_TOKENS.get(op, ()) if device.is_cuda else ())}))


def _samples(
    op: Op[Any, Any], device: DeviceSpec, spec: ModelSpec, tokens: tuple[int, ...]
) -> Iterator[Sample | Check]:
    """The op's own, then the model's; a Check stands for one that could not be made, or that needs too much."""
    try:
        if op.make_samples:
            yield from op.make_samples(device.torch_device)
        shapes = Shapes(spec, device, expert_copies=1)
    except kernel_faults() as error:
        yield with_fault(Check(op.name, "", "making samples"), error)
        return
    for activation in ACTIVATIONS:
        for m in tokens:
            for workload in list_workloads(op, m, activation, shapes):
                yield _sample(workload, device)


def _sample(workload: Workload, device: DeviceSpec) -> Sample | Check:
    row = Check(workload.op.name, "", workload.label)
    try:
        free_memory(device)
        if why := too_large(workload, device, MEMORY_SHARE):
            return replace(row, not_run=why)
        return Sample(workload.label, workload.part.draw())
    except kernel_faults() as error:
        return with_fault(row, error)


def _activation(op: Op[Any, Any], sample: Sample) -> str:
    at = op.activation_at
    return "" if at is None else sample.args[at] if len(sample.args) > at else "bf16"
