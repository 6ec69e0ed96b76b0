"""Every op against its reference on this machine, on its own samples and at a model's shapes; measures no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.kernels.activation import ACTIVATIONS
from firesteel.kernels.op import REFERENCE, Implementation, Op, Sample
from firesteel.kernels.verify import Check, Status, check_sample, list_unusable
from firesteel.measure.bench import too_large
from firesteel.measure.workloads import Shapes, Workload, list_workloads
from firesteel.model.spec import ModelSpec

TOKENS = (1, 7, 64, 320)
MEMORY_SHARE = 0.1  # of what is free, for arguments: a check holds some eight copies


def check_ops(
    ops: tuple[Op[Any, Any], ...],
    device: DeviceSpec,
    spec: ModelSpec,
    *,
    quick: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Check]:
    """`quick` ends, for each implementation and activation, with the first sample that it takes."""
    for done, op in enumerate(ops, start=1):
        yield from list_unusable(op, device)
        usable = [one for one in op.implementations.values() if one.name != REFERENCE and one.needs(device) is None]
        if usable:
            yield from _check_op(op, usable, device, spec, quick)
        if progress:
            progress(done, len(ops))


def _check_op(
    op: Op[Any, Any], usable: list[Implementation[Any, Any]], device: DeviceSpec, spec: ModelSpec, quick: bool
) -> Iterator[Check]:
    ran: set[tuple[str, str]] = set()
    refused: dict[tuple[str, str], Check] = {}
    for sample in _samples(op, device, spec, TOKENS[:1] if quick else TOKENS):
        if isinstance(sample, Check):
            yield from (replace(sample, implementation=one.name) for one in usable)
            continue
        for one in usable:
            key = one.name, _activation(op, sample)
            if quick and key in ran:
                continue
            found = check_sample(op, one, sample)
            if quick and found.status is Status.REFUSED:
                refused[key] = found
                continue
            ran.add(key)
            yield found
    yield from (check for key, check in refused.items() if key not in ran)


def _samples(
    op: Op[Any, Any], device: DeviceSpec, spec: ModelSpec, tokens: tuple[int, ...]
) -> Iterator[Sample | Check]:
    """The op's own, then the model's; a Check stands for one that memory has no room for."""
    if op.make_samples:
        yield from op.make_samples(device.torch_device)
    shapes = Shapes(spec, device)
    for activation in ACTIVATIONS:
        for m in tokens:
            for workload in list_workloads(op, m, activation, shapes):
                yield _sample(workload, device)


def _sample(workload: Workload, device: DeviceSpec) -> Sample | Check:
    if why := too_large(workload, device, MEMORY_SHARE):
        return Check(workload.op.name, "", workload.label, not_run=why)
    return Sample(workload.label, workload.part.draw())


def _activation(op: Op[Any, Any], sample: Sample) -> str:
    at = op.activation_at
    return "" if at is None else sample.args[at] if len(sample.args) > at else "bf16"
