"""Device code of rms_norm and rms_norm_fed: one program per token, the whole row in registers."""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.tiles.launch import launch_kernel, power_of_two
from firesteel.kernels.triton.arithmetic import round_to, widen
from firesteel.kernels.triton.mxfp import store_activation

NUM_WARPS = 8


@triton.jit
def rms_norm_kernel(
    residual,
    update,
    weight,
    y,
    total,
    values,
    scales,
    residual_stride,
    update_stride,
    eps,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
    FORMAT: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Normalises a row. Without `update` nothing is added or written to `total`; without `values` y is not fed."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < HIDDEN
    x = widen(tl.load(residual + token * residual_stride + columns, mask=inside, other=0.0))
    if update is not None:
        x += widen(tl.load(update + token * update_stride + columns, mask=inside, other=0.0))
        tl.store(total + token * HIDDEN + columns, round_to(x, total.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
    gain = widen(tl.load(weight + columns, mask=inside, other=0.0))
    rounded = round_to(x * scale * gain, y.dtype.element_ty)
    tl.store(y + token * HIDDEN + columns, rounded, mask=inside)
    if values is not None:
        row = token + tl.zeros([1], tl.int64)
        wide = tl.reshape(widen(rounded), (1, TILE))
        store_activation(wide, row, row >= 0, 0, values, scales, HIDDEN, FORMAT, NATIVE)


def launch(
    residual: Tensor,
    update: Tensor | None,
    weight: Tensor,
    eps: float,
    y: Tensor,
    total: Tensor,
    fed: Fed | None = None,
) -> None:
    """Writes y, `total` if there is an update, and `fed` if it is given."""
    tokens, hidden = residual.shape
    update_stride = 0 if update is None else update.stride(0)
    values, scales, activation = (None, None, "") if fed is None else (fed.values, fed.scales, fed.activation)
    launch_kernel(
        rms_norm_kernel,
        (tokens,),
        residual,
        update,
        weight,
        y,
        total,
        values,
        scales,
        residual.stride(0),
        update_stride,
        eps,
        HIDDEN=hidden,
        TILE=power_of_two(hidden),
        FORMAT=activation,
        NATIVE=scales is not None,
        num_warps=NUM_WARPS,
    )
