"""The expert MLP by kernel libraries: the calls that they take, the order of the weights, and the calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from firesteel.kernels.libraries import flashinfer_moe, triton_kernels_moe
from firesteel.kernels.libraries.flashinfer_experts import FlashinferExperts
from firesteel.kernels.libraries.hopper_experts import HopperExperts
from firesteel.kernels.libraries.orders import EXPERT_ORDERS, name_order
from firesteel.kernels.libraries.tokens import refuse_tokens
from firesteel.kernels.op.op import Pack
from firesteel.kernels.op.tolerance import Tolerance, bf16
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands
from firesteel.kernels.tiles.tile_pin import AUTO

# E4M3 has three bits after the point: a value is off by up to 2^-4 of itself, 2.6 % rms. Errors of a sum's terms
# are independent, so that the sum keeps this ratio; there are two matmuls, with SwiGLU between.
TOLERANCES = {
    "bf16": bf16(ulps=3, why="also rounds gate and up to bf16 before SwiGLU: on an H200 4.0e-3 rms, ours 3.2e-3"),
    "fp8": Tolerance(
        worst=2.0**-4, rms=2.0**-4, why="activations of both matmuls are rounded to E4M3 by the library"
    ),
    "mxfp8": Tolerance(
        worst=2.0**-3,
        rms=2.0**-4,
        why="the library rounds a group's scale up, OCP's rule cuts off values beyond 448",
    ),
}


def refuse(operands: MoeMatmulOperands) -> str | None:
    """Returns why triton_kernels cannot take this call, or None."""
    if why := _refuse(operands, "triton_kernels", "bf16"):
        return why
    assert isinstance(operands.experts, HopperExperts)
    return triton_kernels_moe.refuse(operands.x, operands.ids, operands.weights, operands.experts)


def refuse_kind(kind: str, operands: MoeMatmulOperands) -> str | None:
    """Returns why FlashInfer cannot take this call with activations of this kind, or None.

    For FP8 with a scale per token there is no format in `activation`: the call is given bf16, and rounds.
    """
    if why := _refuse(operands, f"flashinfer:{kind}", "mxfp8" if kind == "mxfp8" else "bf16"):
        return why
    assert isinstance(operands.experts, FlashinferExperts)
    return refuse_tokens(operands.x, operands.ids, operands.weights)


def _refuse(operands: MoeMatmulOperands, name: str, activation: str) -> str | None:
    if operands.tile != AUTO:
        return f"chooses its own tiles, and {operands.tile} is pinned"
    if operands.activation != activation:
        return f"is for {activation} activations, not {operands.activation}"
    if (order := name_order(operands.experts)) != name:
        return f"reads the experts in the order of {name}, not in that of {order}"
    return None


def reorder(name: str) -> Pack:
    """Returns a function that puts the experts of calls in the order of an implementation, each set once."""

    def pack(calls: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        sets = {id(operands.experts): operands.experts for (operands,) in calls}
        packed = {number: EXPERT_ORDERS[name](experts) for number, experts in sets.items()}
        return [(replace(operands, experts=packed[id(operands.experts)]),) for (operands,) in calls]

    return pack


def run(operands: MoeMatmulOperands, alpha: float) -> Tensor:
    x, ids, weights, experts = operands.x, operands.ids, operands.weights, operands.experts
    if isinstance(experts, FlashinferExperts):
        return flashinfer_moe.run(x, ids, weights, experts, alpha, operands.limit)
    assert isinstance(experts, HopperExperts)
    return triton_kernels_moe.run(x, ids, weights, experts, alpha, operands.limit)
