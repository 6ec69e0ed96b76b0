"""The norm after attention and the router's logits, for one to eight tokens.

in   DecodeRouterOperands
out  logits  [T, E] fp32
The norm is rounded to bf16, the rest is computed in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.kernels.call_key import Described
from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.profile import MOE_OVERHEAD, OpProfile
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import fp32
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.ops.rms_norm import RmsNormOperands, rms_norm
from firesteel.kernels.ops.route import route
from firesteel.kernels.stream.build import build_kernel, keep, launch
from firesteel.kernels.stream.plan import FIRST
from firesteel.kernels.stream.refuse import refuse_layout, refuse_tokens, refuse_types
from firesteel.kernels.stream.ring import pad
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases
from firesteel.kernels.stream.workload import few_tokens

WARPS = 4  # per CTA, each for one expert
STATIC_SHARED_BYTES = 48 * 1024  # the most shared memory that a kernel gets without asking for it


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRouterOperands(Operands):
    r: Tensor  # [T, H] bf16, the residual
    norm: Tensor  # [H] bf16
    eps: float
    weight: Tensor  # [E, H] bf16
    bias: Tensor  # [E] bf16
    dependent: bool = False  # may begin before the kernel ahead of it ends; only weights and norm are read before
    describe = Described.describe  # a step has the same operands at every call


def _bytes(operands: DecodeRouterOperands) -> int:
    r, weight = operands.r, operands.weight
    return r.nbytes + operands.norm.nbytes + weight.nbytes + operands.bias.nbytes + 4 * r.shape[0] * weight.shape[0]


@define_op(
    bytes=_bytes,
    tolerance=fp32(worst=2e-3, rms=3e-4, why="a few values of the norm end on the other side of a bf16 rounding"),
    keeps_choice=True,
    profile=OpProfile(MOE_OVERHEAD, reads="route"),
    replaces=(rms_norm, route),
)
def decode_router(operands: DecodeRouterOperands) -> Tensor:
    x, _ = rms_norm.reference(RmsNormOperands(residual=operands.r, weight=operands.norm, eps=operands.eps))
    return x.float() @ operands.weight.float().T + operands.bias.float()


def _accepts(operands: DecodeRouterOperands) -> str | None:
    r, norm, weight, bias = operands.r, operands.norm, operands.weight, operands.bias
    experts, hidden = weight.shape
    if experts % WARPS or hidden % 16:
        return f"takes experts by {WARPS} and rows of a multiple of 16 values, not {experts} of {hidden}"
    if pad(2 * hidden) + 4 * WARPS > STATIC_SHARED_BYTES:
        return f"holds a token in {STATIC_SHARED_BYTES} bytes: {hidden} values are too many"
    return refuse_tokens(r) or refuse_types(r, norm, weight, bias) or refuse_layout(r, norm, weight, bias)


@keep
def kernel(experts: int, hidden: int) -> CudaKernel:
    sizes = {"EXPERTS": experts, "HIDDEN": hidden}
    return build_kernel("decode_router", sizes, threads=32 * WARPS)


@decode_router.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_router(operands: DecodeRouterOperands) -> Tensor:
    r, weight = operands.r, operands.weight
    tokens, (experts, hidden) = r.shape[0], weight.shape
    logits = torch.empty(tokens, experts, dtype=torch.float32, device=r.device)
    args = (r, operands.norm, weight, operands.bias, logits, operands.eps)
    launch(kernel(experts, hidden), (experts // WARPS, tokens), args, operands.dependent)
    return logits


decode_router.prefer("cuda")


@decode_router.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    if capability >= FIRST:
        yield CudaCode(variant="cuda", kernel=kernel(GPT_OSS.experts, GPT_OSS.hidden))


@decode_router.samples
def samples(device: torch.device) -> Iterator[Sample]:
    for label, tokens, sizes, draw in list_cases(device):
        operands = DecodeRouterOperands(
            r=draw.normal(tokens, sizes.hidden),
            norm=draw.normal(sizes.hidden),
            eps=1e-5,
            weight=draw.weight(sizes.experts, sizes.hidden),
            bias=draw.normal(sizes.experts),
        )
        yield Sample(label, (operands,))


@decode_router.workloads
@few_tokens
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    experts, hidden = shapes.spec.num_experts, shapes.spec.hidden_size

    def draw() -> tuple[DecodeRouterOperands]:
        operands = DecodeRouterOperands(
            r=shapes.normal(m, hidden),
            norm=shapes.bias(hidden),
            eps=shapes.spec.rms_eps,
            weight=shapes.weight(experts, hidden).to(shapes.dtype),
            bias=shapes.bias(experts),
        )
        return (operands,)

    yield WorkloadPart("", 2.0 * m * experts * hidden, 2 * experts * hidden, draw)
