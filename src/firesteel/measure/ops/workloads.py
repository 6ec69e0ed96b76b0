"""The workloads that benchmarks measure: every op at the shapes of a model, for M tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from firesteel.errors import KernelError
from firesteel.kernels.op.op import Op
from firesteel.kernels.operands.activation import FP8
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWorkload:
    op: Op[Any, Any]
    m: int
    activation: str  # empty if the op does not round any
    part: WorkloadPart

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.part.label, f"M={self.m}", self.activation)))


def list_workloads(op: Op[Any, Any], m: int, activation: str, shapes: ModelShapes) -> Iterator[OpWorkload]:
    """Yields the workloads of one op at M tokens.

    An op that rounds no activations has only the plain ones, and FP8 is for the experts.
    """
    if op.make_workloads is None:
        raise KernelError(f"{op.name} has no workloads to measure: add @{op.name}.workloads to its file")
    if not op.rounds_activations:
        if activation != "bf16":
            return
        activation = ""
    if activation == FP8 and op.name != "moe_matmul":
        return
    for part in op.make_workloads(shapes, m, activation):
        yield OpWorkload(op=op, m=m, activation=activation, part=part)
