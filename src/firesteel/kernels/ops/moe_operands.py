"""Operands of moe_matmul."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from firesteel.kernels.libraries.orders import OrderedExperts
from firesteel.kernels.op.operands import TiledOperands
from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.operands.weights import Experts


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMatmulOperands(TiledOperands):
    """`activation` is what the activations of both matmuls are rounded to, MX formats by the OCP rule.

    fp8 has one scale per token. Experts with a row that spans more than E4M3 (`formats.e2m1_rows`) are left out of
    it: their activations are not rounded.
    """

    x: Tensor  # [T, H]
    ids: Tensor  # [T, A] int64, experts of each token; a negative id adds nothing (padding)
    weights: Tensor  # [T, A] fp32
    experts: Experts | OrderedExperts  # packed weights
    limit: float  # of the clamp
    fed: Fed | None = (
        None  # x as rms_norm_fed stored it for `activation`; else `triton` stores it, to the same bits
    )
