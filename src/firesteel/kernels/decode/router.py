"""The norm after attention and the router's logits, for one to eight tokens.

in   r          [T, H] bf16    residual
     norm       [H] bf16, eps
     weight     [E, H] bf16
     bias       [E] bf16
     dependent  may begin before what is ahead of it ends: nothing but weights and norm is read before its wait
out  logits     [T, E] fp32
The norm is rounded to bf16, the rest is fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.tolerance import fp32
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.stream.launch import (
    FIRST,
    build_kernel,
    keep,
    launch,
    refuse_layout,
    refuse_tokens,
    refuse_types,
)
from firesteel.kernels.stream.ring import pad
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases

WARPS = 4  # each for an expert
STATIC_SHARED_BYTES = 48 * 1024  # that a kernel may have without asking


def _bytes(r: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor, dependent: bool = False) -> int:
    return r.nbytes + norm.nbytes + weight.nbytes + bias.nbytes + 4 * r.shape[0] * weight.shape[0]


@define_op(
    bytes=_bytes,
    tolerance=fp32(worst=2e-3, rms=3e-4, why="a few values of the norm end on the other side of a bf16 rounding"),
)
def decode_router(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor, dependent: bool = False
) -> Tensor:
    x, _ = rms_norm.reference(r, None, norm, eps)
    return x.float() @ weight.float().T + bias.float()


def _accepts(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor, dependent: bool = False
) -> str | None:
    experts, hidden = weight.shape
    if experts % WARPS or hidden % 16:
        return f"takes experts by {WARPS} and rows of a multiple of 16 values, not {experts} of {hidden}"
    if pad(2 * hidden) + 4 * WARPS > STATIC_SHARED_BYTES:
        return f"holds a token in {STATIC_SHARED_BYTES} bytes: {hidden} values are too many"
    return (
        refuse_tokens(r) or refuse_types(r, norm, weight, bias) or refuse_layout(r, norm, weight, bias)
    )  # fmt: skip


@keep
def kernel(experts: int, hidden: int) -> CudaKernel:
    sizes = {"EXPERTS": experts, "HIDDEN": hidden}
    return build_kernel("decode_router", sizes, threads=32 * WARPS)


@decode_router.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_router(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor, dependent: bool = False
) -> Tensor:
    tokens, (experts, hidden) = r.shape[0], weight.shape
    logits = torch.empty(tokens, experts, dtype=torch.float32, device=r.device)
    args = (r, norm, weight, bias, logits, eps)
    launch(kernel(experts, hidden), (experts // WARPS, tokens), args, dependent)
    return logits


decode_router.prefer("cuda")


@decode_router.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    if capability >= FIRST:
        yield CudaCode(variant="cuda", kernel=kernel(GPT_OSS.experts, GPT_OSS.hidden))


@decode_router.samples
def samples(device: torch.device) -> Iterator[Sample]:
    for label, tokens, sizes, draw in list_cases(device):
        r, norm = draw.normal(tokens, sizes.hidden), draw.normal(sizes.hidden)
        weight, bias = draw.weight(sizes.experts, sizes.hidden), draw.normal(sizes.experts)
        yield Sample(label, (r, norm, 1e-5, weight, bias))
