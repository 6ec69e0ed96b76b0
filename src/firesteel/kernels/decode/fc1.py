"""The experts' first matmul: choice of experts, norm, gate and up, clamped SwiGLU, for one to eight tokens.

in   r          [T, H] bf16      residual
     norm       [H] bf16, eps
     logits     [T, E] fp32      of decode_router
     experts    packed weights (Experts)
     limit      of the clamp
     active     experts per token, A: those with the largest logits
     activation bf16, or mxfp8: what the norm is rounded to before it meets the weights
     dependent  may begin before what is ahead of it ends: nothing but the norm's weights is read before its wait
out  inner      [T, A, I] bf16   of each token's experts, largest logit first
     inner = swiglu(gate_up @ x + bias), as moe_matmul has it
The norm and the result are rounded to bf16. `cuda` cuts the norm to whole numbers of 14 bits, 64 to 256 columns
together, and multiplies them exactly. Of equal logits it takes the lowest experts; torch.topk takes any.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.formats import mxfp4
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.activation import round_activation
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.ops.moe_matmul import random_experts, swiglu
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.stream.launch import (
    ROUNDED,
    Machine,
    Streamed,
    find_machine,
    keep,
    list_plans,
    most_width,
    plan_streamed,
    refuse_here,
    refuse_layout,
    refuse_rounding,
    refuse_strides,
    refuse_tokens,
    refuse_types,
)
from firesteel.kernels.stream.ring import STRIP_ROWS, Stream, align, refuse_columns
from firesteel.kernels.stream.shapes import GPT_OSS, Sizes, list_cases, rounded_too

STAGES = 7
MOST_ACTIVE = 4  # a lane of a warp for each pair of a token and one of its experts


def count_chosen(logits: Tensor, active: int) -> int:
    """Experts that some token wants."""
    return int(logits.topk(active).indices.unique().numel())


def _bytes(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", dependent: bool = False,
) -> int:  # fmt: skip
    rows = experts.gate_up_codes[0].nbytes + experts.gate_up_scales[0].nbytes + experts.gate_up_bias[0].nbytes
    written = r.shape[0] * active * experts.gate_up_bias.shape[1] // 2 * r.element_size()
    return r.nbytes + norm.nbytes + logits.nbytes + count_chosen(logits, active) * rows + written


@define_op(bytes=_bytes, tolerance=bf16(ulps=2, why="two roundings, and products of two sums; sums in free order"))
def decode_fc1(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", dependent: bool = False,
) -> Tensor:  # fmt: skip
    x = round_activation(rms_norm.reference(r, None, norm, eps)[0].float(), activation)
    ids = logits.topk(active, dim=-1).indices
    inner = torch.empty(*ids.shape, experts.gate_up_bias.shape[1] // 2, dtype=r.dtype, device=r.device)
    for expert in ids.unique().tolist():
        rows, ranks = (ids == expert).nonzero(as_tuple=True)
        gate_up = mxfp4.dequantize(experts.gate_up_codes[expert], experts.gate_up_scales[expert])
        product = torch.addmm(experts.gate_up_bias[expert].float(), x[rows], gate_up.T)
        inner[rows, ranks] = swiglu(product, limit).to(r.dtype)
    return inner


def _accepts(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", dependent: bool = False,
) -> str | None:  # fmt: skip
    if active > MOST_ACTIVE:
        return f"takes up to {MOST_ACTIVE} experts a token, not {active}"
    if experts.gate_up_bias.shape[1] % STRIP_ROWS:
        return f"reads weights by {STRIP_ROWS} rows, not {experts.gate_up_bias.shape[1]}"
    return (
        refuse_tokens(r)
        or refuse_types(r, norm, experts.gate_up_bias)
        or refuse_types(logits, wanted=torch.float32)
        or refuse_layout(r, norm, experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
        or refuse_strides(logits)
        or refuse_columns(True, r.shape[1])
        or refuse_rounding(None, activation)
        or refuse_here(r, lambda machine: _plan_for(machine, r, experts, active, activation))
    )


def chosen_bytes(tokens: int, active: int) -> int:
    """Of `Chosen` in csrc/choose.cuh."""
    return align(4 * (1 + tokens * active * (2 * tokens + 4)))


def shared_bytes(stream: Stream, active: int = MOST_ACTIVE) -> int:
    of_x = stream.x_bytes + stream.scratch_bytes
    return stream.ring_bytes + of_x + chosen_bytes(stream.tokens, active)


@keep
def plan(
    machine: Machine, *, tokens: int, hidden: int, intermediate: int, experts: int, active: int,
    rounds_x: bool = False,
) -> Streamed:  # fmt: skip
    sizes = {
        "HIDDEN": hidden, "INTERMEDIATE": intermediate, "EXPERTS": experts, "ACTIVE": active, "ROUNDS_X": rounds_x,
        "MOST_WIDTH": most_width(machine),
    }  # fmt: skip
    return plan_streamed(
        "decode_fc1", machine, is_fp4=True, columns=hidden, tokens=tokens, stages=STAGES,
        shared=lambda stream: shared_bytes(stream, active), strips=active * 2 * intermediate // STRIP_ROWS,
        sizes=sizes, alone=True,
    )  # fmt: skip


def _plan_for(machine: Machine, r: Tensor, experts: Experts, active: int, activation: str) -> Streamed:
    count, rows = experts.gate_up_bias.shape
    return plan(
        machine, tokens=r.shape[0], hidden=r.shape[1], intermediate=rows // 2, experts=count, active=active,
        rounds_x=activation == ROUNDED,
    )  # fmt: skip


@decode_fc1.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_fc1(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", dependent: bool = False,
) -> Tensor:  # fmt: skip
    intermediate = experts.gate_up_bias.shape[1] // 2
    inner = torch.empty(r.shape[0], active, intermediate, dtype=r.dtype, device=r.device)
    weights = (experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
    args = (r, norm, logits, *weights, inner, eps, limit, r.shape[0])
    _plan_for(find_machine(r.device), r, experts, active, activation).launch(args, dependent)
    return inner


decode_fc1.prefer("cuda")


@decode_fc1.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    def plan_big(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        return plan(machine, tokens=tokens, rounds_x=rounds_x, **expert_sizes(GPT_OSS))

    yield from list_plans(capability, plan_big, formats=(True,))


def expert_sizes(sizes: Sizes) -> dict[str, int]:
    return {
        "hidden": sizes.hidden, "intermediate": sizes.intermediate, "experts": sizes.experts,
        "active": sizes.active,
    }  # fmt: skip


@decode_fc1.samples
def samples(device: torch.device) -> Iterator[Sample]:
    for label, tokens, sizes, draw in list_cases(device):
        experts = random_experts(sizes.experts, sizes.hidden, sizes.intermediate, draw.generator)
        logits = draw.logits(tokens, sizes.experts)
        r, norm = draw.normal(tokens, sizes.hidden), draw.normal(sizes.hidden)
        yield from rounded_too(label, "mxfp4-weight", (r, norm, 1e-5, logits, experts, 7.0, sizes.active))
