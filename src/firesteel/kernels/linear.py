"""Matrix product with a dense weight: qkv, o and lm_head.

in   x       [T, N]
     weight  [M, N] bf16, or the same in MXFP4 (Mxfp4Weight)
     bias    [M] bf16 or None
     activation  bf16, or what x is rounded to before it meets an MXFP4 weight: mxfp8 or mxfp4
     tile    auto, or ROWSxCOLUMNS: tokens times rows of an MXFP4 weight that a program computes
out  y       [T, M]   x @ weight.T + bias, in x's type
Accumulated in fp32, rounded once on store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.formats import mxfp4
from firesteel.kernels.activation import round_activation
from firesteel.kernels.op import DeviceCode, Sample, define_op
from firesteel.kernels.tolerance import bf16
from firesteel.kernels.triton_ready import triton_ready

ROWS_AT_ONCE = 16384  # bounds the fp32 copy of lm_head's 201088 rows
VECTOR_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp4Weight:
    """[M, N] in MXFP4: codes two to a byte and a scale for each 32, as in a checkpoint."""

    codes: Tensor  # [M, N/2] uint8
    scales: Tensor  # [M, N/32] uint8

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def _bytes(
    x: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor | None, activation: str = "bf16", tile: str = "auto"
) -> int:
    bias_bytes = 0 if bias is None else bias.nbytes
    return x.nbytes + weight.nbytes + bias_bytes + x.shape[0] * weight.shape[0] * x.element_size()


def _reference_accepts(
    x: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor | None, activation: str = "bf16", tile: str = "auto"
) -> str | None:
    if tile != "auto":
        return f"has no tiles, and {tile} is pinned"
    return None if activation == "bf16" or isinstance(weight, Mxfp4Weight) else _needs_mxfp4(activation)


def _needs_mxfp4(activation: str) -> str:
    return f"rounds activations to {activation} only before MXFP4 weights, these are bf16"


@define_op(
    bytes=_bytes, tolerance=bf16(ulps=1, why="one rounding; fp32 sums in free order"), accepts=_reference_accepts
)
def linear(
    x: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor | None, activation: str = "bf16", tile: str = "auto"
) -> Tensor:
    wide = round_activation(x.float(), activation)
    parts = [functional.linear(wide, rows) for rows in _wide_rows(weight)]
    y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _wide_rows(weight: Tensor | Mxfp4Weight) -> Iterator[Tensor]:
    """The weight in fp32, some rows at a time."""
    if isinstance(weight, Mxfp4Weight):
        pairs = zip(weight.codes.split(ROWS_AT_ONCE), weight.scales.split(ROWS_AT_ONCE), strict=True)
        yield from (mxfp4.dequantize(codes, scales) for codes, scales in pairs)
    else:
        yield from (rows.float() for rows in weight.split(ROWS_AT_ONCE))


def _accepts(
    x: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor | None, activation: str = "bf16", tile: str = "auto"
) -> str | None:
    if isinstance(weight, Mxfp4Weight):
        return "takes no MXFP4 weights yet"
    if x.dtype != weight.dtype or x.dtype not in (torch.bfloat16, torch.float16):
        return f"multiplies bf16 by bf16 or fp16 by fp16, not {x.dtype} by {weight.dtype}"
    return None if x.stride(-1) == 1 and weight.stride(-1) == 1 else "wants rows whose values lie side by side"


def _accepts_few(
    x: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor | None, activation: str = "bf16", tile: str = "auto"
) -> str | None:
    if x.shape[0] > VECTOR_TOKENS:
        return f"is for {VECTOR_TOKENS} tokens at most, not {x.shape[0]}"
    return _accepts(x, weight, bias, activation, tile)


@linear.implementation("triton:gemv", needs=triton_ready(), accepts=_accepts_few)
def triton_gemv(
    x: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor | None, activation: str = "bf16", tile: str = "auto"
) -> Tensor:
    """One token on the plain cores, bound by the bytes of the weights; two to eight in one narrow tile."""
    from firesteel.kernels.triton.linear import launch_tiles, launch_vector

    y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    launch = launch_vector if x.shape[0] == 1 else launch_tiles
    launch(x, weight, bias, y)
    return y


@linear.implementation("triton:gemm", needs=triton_ready(), accepts=_accepts)
def triton_gemm(
    x: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor | None, activation: str = "bf16", tile: str = "auto"
) -> Tensor:
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
