"""Parts that workloads of the decode ops have in common. Dense weights come in bf16 and in MXFP4."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from firesteel.kernels.op.operands import Operands
from firesteel.kernels.operands.shapes import MakeWorkloads, ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.stream.plan import ROUNDED
from firesteel.kernels.stream.ring import MOST_TOKENS

CONTEXT = 2048  # tokens that a request holds


def few_tokens(make: MakeWorkloads) -> MakeWorkloads:
    """Leaves out what decode ops do not take: more tokens than a step has, other roundings."""

    @functools.wraps(make)
    def make_few(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
        if m <= MOST_TOKENS and activation in ("", "bf16", ROUNDED):
            yield from make(shapes, m, activation)

    return make_few


def list_dense(
    shapes: ModelShapes,
    m: int,
    activation: str,
    size: tuple[int, int],
    draw: Callable[[Tensor | Mxfp4Weight], Operands],
) -> Iterator[WorkloadPart]:
    """Yields a part per format of a weight of `size` (rows, columns); activations are rounded before MXFP4 only."""
    rows, columns = size
    formats: dict[str, Callable[[int, int], Tensor | Mxfp4Weight]] = {"mxfp4": shapes.mxfp4_weight}
    if activation == "bf16":
        formats = {"bf16": shapes.weight, **formats}
    for label, make in formats.items():

        def draw_with(make: Callable[[int, int], Tensor | Mxfp4Weight] = make) -> tuple[Operands]:
            return (draw(make(rows, columns)),)

        yield WorkloadPart(label, 2.0 * m * rows * columns, 2 * rows * columns, draw_with)


def draw_logits(shapes: ModelShapes, m: int) -> Tensor:
    """Returns logits of the router; those of a token are a quarter apart: rounding cannot change a choice."""
    order = torch.rand(m, shapes.spec.num_experts, generator=shapes.generator, device=shapes.device).argsort(-1)
    return order.float().mul_(0.25)
