"""Dense layers by kernel libraries: the calls that they take, the order of the weight, and the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from firesteel.kernels.libraries import flashinfer_linear
from firesteel.kernels.libraries.flashinfer_linear import FlashinferWeight
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.tiles.tile_pin import AUTO

TOLERANCE = bf16(ulps=2, why="rounded before and after the bias is added; fp32 sums in free order")


def refuse(operands: Any) -> str | None:
    """Returns why FlashInfer cannot take this call, or None."""
    if operands.tile != AUTO:
        return f"chooses its own tiles, and {operands.tile} is pinned"
    if not isinstance(operands.weight, FlashinferWeight):
        return "reads MXFP4 weights in the order of flashinfer, not in that of the checkpoint"
    if operands.activation != "mxfp8":
        return f"is for mxfp8 activations, not {operands.activation}"
    return flashinfer_linear.refuse(operands.x, operands.weight)


def reorder(calls: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Puts the MXFP4 weights of calls in the order that FlashInfer reads, each once."""
    held = {id(operands.weight): operands.weight for (operands,) in calls}
    packed = {
        number: FlashinferWeight.pack(weight) if isinstance(weight, Mxfp4Weight) else weight
        for number, weight in held.items()
    }
    return [(replace(operands, weight=packed[id(operands.weight)]),) for (operands,) in calls]


def run(operands: Any) -> Tensor:
    return flashinfer_linear.run(operands.x, operands.weight, operands.bias)
