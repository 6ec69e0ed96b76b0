"""rms_norm that also rounds its result to MXFP8, in one pass over the row.

in   residual, update, weight, eps   of rms_norm; H a multiple of 32
out  y, sum          of rms_norm
     codes, scales   of quantize_mxfp8 on y as it was stored

The network does not call this op: its matmuls on MXFP4 weights store activations themselves, in the order in which
they multiply them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.kernels.op import DeviceCode, define_op
from firesteel.kernels.quantize_mxfp8 import empty_mxfp8, quantize_mxfp8, refuse_groups
from firesteel.kernels.rms_norm import kernel_code, refuse_rows, rms_norm
from firesteel.kernels.tolerance import bf16
from firesteel.kernels.triton_ready import triton_ready


def _bytes(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> int:
    return rms_norm.bytes(residual, update, weight, eps) + quantize_mxfp8.bytes(residual) - residual.nbytes


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=1, why="as rms_norm; where y is a unit apart, a code may be the next one, a scale hardly"),
)
def rms_norm_mxfp8(
    residual: Tensor, update: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, total = rms_norm.reference(residual, update, weight, eps)
    return y, total, *quantize_mxfp8.reference(y)


def _accepts(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> str | None:
    return refuse_groups(residual) or refuse_rows(residual, update, weight, eps)


@rms_norm_mxfp8.implementation("triton", needs=triton_ready(), accepts=_accepts)
def triton_rms_norm_mxfp8(
    residual: Tensor, update: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from firesteel.kernels.triton.rms_norm import launch

    y = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    total = residual if update is None else torch.empty_like(y)
    codes, scales = empty_mxfp8(residual)
    launch(residual, update, weight, eps, y, total, codes, scales)
    return y, total, codes, scales


rms_norm_mxfp8.prefer("triton")


@rms_norm_mxfp8.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    yield from kernel_code({"values": "*u8", "scales": "*u8"}, {})


rms_norm_mxfp8.make_samples = rms_norm.make_samples
