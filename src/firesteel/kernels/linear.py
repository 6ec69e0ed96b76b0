"""Matrix product with a dense weight: qkv, o and lm_head.

in   x       [T, N]
     weight  [M, N] bf16
     bias    [M] bf16 or None
out  y       [T, M]   x @ weight.T + bias, in x's type
Accumulated in fp32, rounded once on store.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.kernels.op import DeviceCode, Sample, define_op
from firesteel.kernels.tolerance import bf16
from firesteel.kernels.triton_ready import triton_ready

ROWS_AT_ONCE = 16384  # bounds the fp32 copy of lm_head's 201088 rows
VECTOR_TOKENS = 8


def _bytes(x: Tensor, weight: Tensor, bias: Tensor | None) -> int:
    bias_bytes = 0 if bias is None else bias.nbytes
    return x.nbytes + weight.nbytes + bias_bytes + x.shape[0] * weight.shape[0] * x.element_size()


@define_op(bytes=_bytes, tolerance=bf16(ulps=1, why="one rounding; fp32 sums in free order"))
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = x.float()
    parts = [functional.linear(wide, rows.float()) for rows in weight.split(ROWS_AT_ONCE)]
    y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _accepts(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    if x.dtype != weight.dtype or x.dtype not in (torch.bfloat16, torch.float16):
        return f"multiplies bf16 by bf16 or fp16 by fp16, not {x.dtype} by {weight.dtype}"
    return None if x.stride(-1) == 1 and weight.stride(-1) == 1 else "wants rows whose values lie side by side"


def _accepts_few(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    if x.shape[0] > VECTOR_TOKENS:
        return f"is for {VECTOR_TOKENS} tokens at most, not {x.shape[0]}"
    return _accepts(x, weight, bias)


@linear.implementation("triton:gemv", needs=triton_ready(), accepts=_accepts_few)
def triton_gemv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One token on the plain cores, bound by the bytes of the weights; two to eight in one narrow tile."""
    from firesteel.kernels.triton.linear import launch_tiles, launch_vector

    y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    launch = launch_vector if x.shape[0] == 1 else launch_tiles
    launch(x, weight, bias, y)
    return y


@linear.implementation("triton:gemm", needs=triton_ready(), accepts=_accepts)
def triton_gemm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    from firesteel.kernels.triton.linear import launch_tiles

    y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    launch_tiles(x, weight, bias, y)
    return y


@linear.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    """qkv's shape for all, o's and lm_head's columns among the vectors."""
    from firesteel.kernels.triton import linear as code

    signature = {"x": "*bf16", "weight": "*bf16", "bias": "*bf16", "y": "*bf16"}
    signature |= {"x_stride": "i32:16", "weight_stride": "i32:16"}
    for rows, columns in ((5120, 2880), (2880, 4096), (201088, 2880)):
        yield DeviceCode(
            variant=f"triton:gemv T=1 {rows}x{columns}", kernel=code.vector_kernel, signature=signature,
            constants={"M": rows, "N": columns, "ROWS": code.vector_rows(rows), "COLUMNS": code.VECTOR_COLUMNS},
            num_warps=code.VECTOR_WARPS,
        )  # fmt: skip
    for tile in code.TILES:
        constants = {"M": 5120, "N": 2880, "TOKENS": tile.tokens, "ROWS": tile.rows, "COLUMNS": tile.columns}
        names = ("triton:gemv", "triton:gemm") if tile.tokens <= 2 * VECTOR_TOKENS else ("triton:gemm",)
        for name in names:
            yield DeviceCode(
                variant=f"{name} {tile.tokens}x{tile.rows}x{tile.columns}", kernel=code.tile_kernel,
                signature={**signature, "T": "i32"}, constants=constants,
                num_warps=tile.num_warps, num_stages=tile.num_stages,
            )  # fmt: skip


@linear.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    for tokens, rows, columns in ((1, 5120, 2880), (3, 2880, 4096), (65, 97, 96)):
        x = torch.randn(tokens, columns, device=device, generator=generator).bfloat16()
        weight = torch.randn(rows, columns, device=device, generator=generator).mul(columns**-0.5).bfloat16()
        bias = torch.randn(rows, device=device, generator=generator).bfloat16()
        yield Sample(f"T={tokens} {rows}x{columns}", (x, weight, bias))
        yield Sample(f"T={tokens} {rows}x{columns} no bias", (x, weight, None))
