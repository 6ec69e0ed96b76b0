"""Checks every op against its reference on this machine, on its own samples and at the shapes of a model.

A fault that leaves the GPU unusable ends the checks of its process: the remaining ones are listed as not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.kernels.op.invariance import INVARIANT
from firesteel.kernels.op.op import REFERENCE, Implementation, Op
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.activation import ACTIVATIONS, FP8
from firesteel.kernels.operands.shapes import ModelShapes
from firesteel.kernels.proof.isolate import Died, Worker
from firesteel.kernels.proof.row_invariance import check_rows
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
from firesteel.measure.ops.workloads import OpWorkload, list_workloads
from firesteel.model.spec import ModelSpec

TOKENS = (1, 7, 64, 320)
# Additional on a GPU: the number of tokens selects a tile; these cover every tile that up to 8192 tokens select.
TILE_TOKENS = {"linear": (24, 100, 500, 1000, 4096), "moe_matmul": (12, 24, 100, 191, 1000, 4096), "route": (8192,)}
MEMORY_SHARE = 0.15  # of the free memory, for arguments: a check holds up to six copies
DEVICE_FAILED = "the device failed earlier in"
Progress = Callable[[int, int], None]
SLOW = "takes minutes on a CPU at these shapes, and is checked only by name: add --implementation torch"
Implementations = list[Implementation[Any, Any]]


def check_ops(
    ops: tuple[Op[Any, Any], ...],
    device: DeviceSpec,
    spec: ModelSpec,
    *,
    quick: bool = False,
    names: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Iterator[Check]:
    """Checks all ops.

    `quick` stops at the first accepted sample per implementation, activation and set of types. `names` limits the
    implementations, by full name or family; batch-invariant ones for a CPU must be named.
    """
    broken = ""
    for done, op in enumerate(ops, start=1):
        yield from (row for row in list_unusable(op, device) if is_named(row.implementation, names))
        usable = [
            implementation
            for implementation in op.implementations.values()
            if implementation.name != REFERENCE
            and is_named(implementation.name, names)
            and implementation.needs(device) is None
        ]
        if not (device.is_cuda or names):
            slow = [implementation for implementation in usable if implementation.name.endswith(INVARIANT)]
            yield from (Check(op.name, skipped.name, "", not_run=SLOW) for skipped in slow)
            usable = [implementation for implementation in usable if implementation not in slow]
        for check in _check_op(op, usable, device, spec, quick) if usable and not broken else ():
            yield check
            if check.failure and has_failed(device):
                broken = " ".join(filter(None, (check.op, check.implementation, check.sample)))
                break
        if broken:
            why = f"{DEVICE_FAILED} {broken}"
            yield from (Check(op.name, skipped.name, "all that remain", not_run=why) for skipped in usable)
        if progress:
            progress(done, len(ops))


def check_apart(
    ops: tuple[Op[Any, Any], ...],
    device: DeviceSpec,
    spec: ModelSpec,
    *,
    quick: bool = False,
    names: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Iterator[Check]:
    """Checks ops in another process, which is replaced after an op that broke the device or killed the process."""
    worker = Worker()
    try:
        for done, op in enumerate(ops, start=1):
            checks = worker.call(check_alone, op.name, device, spec, quick, names)
            if isinstance(checks, Died):
                checks = [Check(op.name, "", "", failure=checks.reason)]
            yield from checks
            if any(DEVICE_FAILED in check.why for check in checks):
                worker.stop()
            if progress:
                progress(done, len(ops))
    finally:
        worker.stop()


def check_alone(
    name: str, device: DeviceSpec, spec: ModelSpec, quick: bool, names: tuple[str, ...] = ()
) -> list[Check]:
    """Checks one op, given by name because ops cannot be pickled."""
    return list(check_ops((find_op(name),), device, spec, quick=quick, names=names))


def is_named(implementation: str, names: tuple[str, ...]) -> bool:
    """Returns whether names, empty or full names and families, include the implementation."""
    return not names or bool({implementation, implementation.partition(":")[0]} & set(names))


def _check_op(
    op: Op[Any, Any], usable: Implementations, device: DeviceSpec, spec: ModelSpec, quick: bool
) -> Iterator[Check]:
    ran: set[tuple[Any, ...]] = set()
    refused: dict[tuple[Any, ...], Check] = {}
    for sample in _samples(op, device, spec, TOKENS[:1] if quick else list_tokens(op.name, device)):
        if isinstance(sample, Check):
            yield from (replace(sample, implementation=skipped.name) for skipped in usable)
            continue
        for implementation in usable:
            key = (
                implementation.name,
                op.find_activation(sample.args),
                frozenset(tensor.dtype for tensor in tensors(sample.args)),
            )
            if quick and key in ran:
                continue
            check = check_sample(op, implementation, sample)
            if quick and check.status is Status.REFUSED:
                refused[key] = check
                continue
            ran.add(key)
            yield check
            if check.status is Status.PASSED and (of_rows := check_rows(op, implementation, sample)) is not None:
                yield of_rows
    yield from (check for key, check in refused.items() if key not in ran)


def list_tokens(op: str, device: DeviceSpec) -> tuple[int, ...]:
    """Returns token counts in ascending order; few on a CPU, because Triton's interpreter is slow."""
    return tuple(sorted({*TOKENS, *(TILE_TOKENS.get(op, ()) if device.is_cuda else ())}))


def _samples(
    op: Op[Any, Any], device: DeviceSpec, spec: ModelSpec, tokens: tuple[int, ...]
) -> Iterator[Sample | Check]:
    """Yields the op's samples, then the model's; a Check replaces a sample that failed or is too large."""
    try:
        if op.make_samples:
            yield from op.make_samples(device.torch_device)
        shapes = ModelShapes(spec, device, expert_copies=1)
    except kernel_faults() as error:
        yield with_fault(Check(op.name, "", "making samples"), error)
        return
    for activation in (*ACTIVATIONS, FP8):
        for m in tokens:
            for workload in list_workloads(op, m, activation, shapes):
                yield _sample(workload, device)


def _sample(workload: OpWorkload, device: DeviceSpec) -> Sample | Check:
    row = Check(workload.op.name, "", workload.label)
    try:
        free_memory(device)
        if why := too_large(workload, device, MEMORY_SHARE):
            return replace(row, not_run=why)
        return Sample(workload.label, workload.part.draw())
    except kernel_faults() as error:
        return with_fault(row, error)
