"""The ops, token counts, activations and implementations of a benchmark, and the checks made before it starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.op.invariance import INVARIANT
from firesteel.kernels.op.op import REFERENCE, Implementation, Op
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.operands.shapes import ModelShapes
from firesteel.kernels.proof.prove import check_here
from firesteel.measure.ops.memory import too_large
from firesteel.measure.ops.outcome import OpOutcome
from firesteel.measure.ops.workloads import OpWorkload, list_workloads
from firesteel.model.spec import ModelSpec

MEMORY_SHARE = 0.5  # of the free memory, that arguments may take
Required = Mapping[str, Requirement]  # keyed by op
Implementations = list[Implementation[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsSweep:
    spec: ModelSpec
    ops: tuple[Op[Any, Any], ...]
    ms: tuple[int, ...]
    activations: tuple[str, ...] = ("bf16",)
    implementations: tuple[str, ...] = ()  # families or full names; empty means all except a GPU's reference

    def workloads(self, shapes: ModelShapes) -> list[OpWorkload]:
        """Lists the workloads; no tensor is drawn yet."""
        cases = itertools.product(self.ops, self.activations, self.ms)
        return [workload for op, activation, m in cases for workload in list_workloads(op, m, activation, shapes)]


def choose(op: Op[Any, Any], device: DeviceSpec, wanted: tuple[str, ...] = ()) -> Implementations:
    """Returns the requested implementations that run here.

    Those that exist for batch invariance alone must be requested by their whole name, on a GPU the reference too.
    """
    usable = [entry for entry in op.implementations.values() if entry.needs(device) is None]
    ordinary = [entry for entry in usable if not entry.name.endswith(INVARIANT)]
    if wanted:
        families = {entry.name for entry in ordinary if entry.name.partition(":")[0] in wanted}
        return [entry for entry in usable if entry.name in families.union(wanted)]
    return [entry for entry in ordinary if not device.is_cuda or entry.name != REFERENCE]


def refusal(implementation: Implementation[Any, Any], args: tuple[Any, ...]) -> str | None:
    """Returns why the implementation does not accept the arguments, or None."""
    return implementation.accepts(*args) if implementation.accepts else None


def order_weights(implementation: Implementation[Any, Any], calls: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Returns the calls with their weights in the order that the implementation reads."""
    return calls if implementation.pack is None else implementation.pack(calls)


def check_implementations(sweep: OpsSweep, device: DeviceSpec) -> None:
    """Raises for a name that no op has, or that cannot run here."""
    for name in sweep.implementations:
        if not any(choose(op, device, (name,)) for op in sweep.ops):
            here = {
                implementation.name
                for op in sweep.ops
                for implementation in choose(op, device, ()) or op.implementations.values()
            }
            raise KernelError(f"no op runs {name!r} on {device.name}; available: {', '.join(sorted(here))}")


def check_required(sweep: OpsSweep, device: DeviceSpec, required: Required) -> None:
    """Raises unless every requirement would be measured: on this GPU, as the required machine code, at every M."""
    shapes = ModelShapes(sweep.spec, device)
    for op in (op for op in sweep.ops if op.name in required):
        wanted = required[op.name]
        named = _usable(op, device, wanted, sweep.implementations)
        if not replace(sweep, ops=(op,)).workloads(shapes):
            asked = f"--activation {', '.join(sweep.activations)} and --m {', '.join(map(str, sweep.ms))}"
            raise KernelError(f"{wanted} is required, but {op.name} is not measured with {asked}: name others")
        for activation in sweep.activations:
            if wanted.verdict is not None:
                check_here(op, device, wanted, activation)
            for m in sweep.ms:
                _check_accepted(wanted, named, list(list_workloads(op, m, activation, shapes)), device)


def check_measured(outcomes: Iterable[OpOutcome], required: Required) -> None:
    """Raises unless all that is required, and passed `check_required`, has figures at every M and activation."""
    cases: dict[tuple[str, int, str], list[OpOutcome]] = {}
    for outcome in outcomes:
        if outcome.op in required and required[outcome.op].names(outcome.implementation):
            cases.setdefault((outcome.op, outcome.m, outcome.activation), []).append(outcome)
    for (op, m, activation), same_case in cases.items():
        if not any(outcome.figures for outcome in same_case):
            at = " ".join(filter(None, (f"M={m}", activation)))
            raise KernelError(f"{required[op]} is required, but at {at} it was not measured: {same_case[0].why}")


def _usable(
    op: Op[Any, Any], device: DeviceSpec, wanted: Requirement, implementations: tuple[str, ...]
) -> Implementations:
    if why := op.lacks(device, wanted.implementation):
        raise KernelError(f"{wanted} is required, but it {why}; here there is {op.list_runnable(device)}")
    named = [entry for entry in op.implementations.values() if wanted.names(entry.name)]
    if not named:
        raise KernelError(f"{wanted} is required, but {op.name} has only {', '.join(op.implementations)}")
    asked = [entry for entry in named if entry in choose(op, device, implementations)]
    if not asked:
        cure = f"add --implementation {wanted.implementation}"
        raise KernelError(f"{wanted} is required, but is not among what is measured: {cure}")
    return asked


def _check_accepted(
    wanted: Requirement, named: Implementations, workloads: list[OpWorkload], device: DeviceSpec
) -> None:
    """Raises unless at least one workload of an M fits into memory and is accepted by what is required."""
    refusals: list[str | None] = []
    for workload in workloads:
        if why := too_large(workload, device, MEMORY_SHARE):
            refusals.append(f"is {why}")
            continue
        calls = [workload.part.draw()]
        refusals += [refusal(implementation, order_weights(implementation, calls)[0]) for implementation in named]
    if refusals and all(refusals):
        raise KernelError(f"{wanted} is required, but at {workloads[0].label} {named[0].name} {refusals[0]}")
