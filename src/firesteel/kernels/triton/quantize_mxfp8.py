"""Device code of quantize_mxfp8: each program rounds one tile of rows and groups."""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.tiles.launch import divide_up, launch_kernel
from firesteel.kernels.triton.arithmetic import widen
from firesteel.kernels.triton.e4m3 import to_e4m3
from firesteel.kernels.triton.mxfp import scale_of

GROUP = tl.constexpr(32)
ROWS, COLUMNS = 4, 512
E4M3_MAX_EXPONENT = tl.constexpr(8)


@triton.jit
def quantize(x):
    """Rounds x [N, C] fp32 to codes [N, C] and scales [N, C/32], both uint8."""
    N: tl.constexpr = x.shape[0]
    C: tl.constexpr = x.shape[1]
    groups = tl.reshape(x, (N, C // GROUP, GROUP))
    scales = scale_of(groups, E4M3_MAX_EXPONENT)
    inverse = ((254 - scales.to(tl.int32)) << 23).to(tl.float32, bitcast=True)  # 254 - b is the reciprocal of b
    return tl.reshape(to_e4m3(groups * inverse[:, :, None]), (N, C)), scales


@triton.jit(do_not_specialize=["num_tokens"])
def quantize_mxfp8_kernel(
    x, values, scales, num_tokens, x_stride, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    groups = tl.program_id(1) * (COLUMNS // GROUP) + tl.arange(0, COLUMNS // GROUP)
    is_row = (rows < num_tokens)[:, None]
    inside = is_row & (columns < K)[None, :]
    places = rows.to(tl.int64)[:, None]
    codes, exponents = quantize(widen(tl.load(x + places * x_stride + columns[None, :], mask=inside, other=0.0)))
    tl.store(values + places * K + columns[None, :], codes, mask=inside)
    groups_inside = is_row & (groups < K // GROUP)[None, :]
    tl.store(scales + places * (K // GROUP) + groups[None, :], exponents, mask=groups_inside)


def launch(x: Tensor, codes: Tensor, scales: Tensor) -> None:
    tokens, columns = x.shape
    launch_kernel(
        quantize_mxfp8_kernel,
        (divide_up(tokens, ROWS), divide_up(columns, COLUMNS)),
        x,
        codes,
        scales,
        tokens,
        x.stride(0),
        K=columns,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )
