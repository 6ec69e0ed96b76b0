"""The experts' first matmul: choice of experts, norm, gate and up, clamped SwiGLU, for one to eight tokens.

in   DecodeFc1Operands
out  inner  [T, A, I] bf16  per token and chosen expert, largest logit first
     inner = swiglu(gate_up @ x + bias), as in moe_matmul
The norm and the result are rounded to bf16. `cuda` converts the norm to 14-bit integers that share a scale per 64
to 256 columns, and multiplies them exactly. Among equal logits it takes the experts with the lowest ids; torch.topk
may take any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.formats import mxfp4
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import RoundedOperands
from firesteel.kernels.op.profile import EXPERTS, OpProfile
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.activation import round_activation
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Experts, random_experts
from firesteel.kernels.ops.moe_matmul import moe_matmul, swiglu
from firesteel.kernels.ops.rms_norm import RmsNormOperands, rms_norm
from firesteel.kernels.stream.build import keep
from firesteel.kernels.stream.plan import (
    ROUNDED,
    Machine,
    Streamed,
    find_machine,
    list_plans,
    most_width,
    plan_streamed,
)
from firesteel.kernels.stream.refuse import (
    refuse_here,
    refuse_layout,
    refuse_rounding,
    refuse_strides,
    refuse_tokens,
    refuse_types,
)
from firesteel.kernels.stream.ring import STRIP_ROWS, Stream, align, refuse_columns
from firesteel.kernels.stream.shapes import GPT_OSS, Sizes, list_cases, rounded_too
from firesteel.kernels.stream.workload import draw_logits, few_tokens

STAGES = 7
MOST_ACTIVE = 4  # a warp has one lane per pair of a token and one of its experts


def count_chosen(logits: Tensor, active: int) -> int:
    """Returns how many experts some token chooses."""
    return int(logits.topk(active).indices.unique().numel())


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFc1Operands(RoundedOperands):
    """`activation` is bf16 or mxfp8: what the norm is rounded to before it meets the weights."""

    r: Tensor  # [T, H] bf16, the residual
    norm: Tensor  # [H] bf16
    eps: float
    logits: Tensor  # [T, E] fp32, of decode_router
    experts: Experts  # packed weights
    limit: float  # of the clamp
    active: int  # experts per token, A: those with the largest logits
    dependent: bool = False  # may begin before the kernel ahead of it ends; only the norm's weights are read before


def _bytes(operands: DecodeFc1Operands) -> int:
    r, logits, experts, active = operands.r, operands.logits, operands.experts, operands.active
    rows = experts.gate_up_codes[0].nbytes + experts.gate_up_scales[0].nbytes + experts.gate_up_bias[0].nbytes
    written = r.shape[0] * active * experts.gate_up_bias.shape[1] // 2 * r.element_size()
    return r.nbytes + operands.norm.nbytes + logits.nbytes + count_chosen(logits, active) * rows + written


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=2, why="two roundings, and products of two sums; sums in free order"),
    keeps_choice=True,
    profile=OpProfile(EXPERTS, reads="moe_matmul.gate_up"),
    replaces=(rms_norm, moe_matmul),
)
def decode_fc1(operands: DecodeFc1Operands) -> Tensor:
    r, experts = operands.r, operands.experts
    normed, _ = rms_norm.reference(RmsNormOperands(residual=r, weight=operands.norm, eps=operands.eps))
    x = round_activation(normed.float(), operands.activation)
    ids = operands.logits.topk(operands.active, dim=-1).indices
    inner = torch.empty(*ids.shape, experts.gate_up_bias.shape[1] // 2, dtype=r.dtype, device=r.device)
    for expert in ids.unique().tolist():
        rows, ranks = (ids == expert).nonzero(as_tuple=True)
        gate_up = mxfp4.dequantize(experts.gate_up_codes[expert], experts.gate_up_scales[expert])
        product = torch.addmm(experts.gate_up_bias[expert].float(), x[rows], gate_up.T)
        inner[rows, ranks] = swiglu(product, operands.limit).to(r.dtype)
    return inner


def _accepts(operands: DecodeFc1Operands) -> str | None:
    r, norm, logits, experts = operands.r, operands.norm, operands.logits, operands.experts
    if operands.active > MOST_ACTIVE:
        return f"takes up to {MOST_ACTIVE} experts a token, not {operands.active}"
    if experts.gate_up_bias.shape[1] % STRIP_ROWS:
        return f"reads weights by {STRIP_ROWS} rows, not {experts.gate_up_bias.shape[1]}"
    return (
        refuse_tokens(r)
        or refuse_types(r, norm, experts.gate_up_bias)
        or refuse_types(logits, wanted=torch.float32)
        or refuse_layout(r, norm, experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
        or refuse_strides(logits)
        or refuse_columns(True, r.shape[1])
        or refuse_rounding(None, operands.activation)
        or refuse_here(r, lambda machine: _plan_for(machine, operands))
    )


def chosen_bytes(tokens: int, active: int) -> int:
    """Returns the bytes of `Chosen` in csrc/choose.cuh."""
    return align(4 * (1 + tokens * active * (2 * tokens + 4)))


def shared_bytes(stream: Stream, active: int = MOST_ACTIVE) -> int:
    of_x = stream.x_bytes + stream.scratch_bytes
    return stream.ring_bytes + of_x + chosen_bytes(stream.tokens, active)


@keep
def plan(
    machine: Machine,
    *,
    tokens: int,
    hidden: int,
    intermediate: int,
    experts: int,
    active: int,
    rounds_x: bool = False,
) -> Streamed:
    sizes = {
        "HIDDEN": hidden,
        "INTERMEDIATE": intermediate,
        "EXPERTS": experts,
        "ACTIVE": active,
        "ROUNDS_X": rounds_x,
        "MOST_WIDTH": most_width(machine),
    }
    return plan_streamed(
        "decode_fc1",
        machine,
        is_fp4=True,
        columns=hidden,
        tokens=tokens,
        stages=STAGES,
        shared=lambda stream: shared_bytes(stream, active),
        strips=active * 2 * intermediate // STRIP_ROWS,
        sizes=sizes,
        alone=True,
        fewest_held=most_width(machine),
    )


def _plan_for(machine: Machine, operands: DecodeFc1Operands) -> Streamed:
    count, rows = operands.experts.gate_up_bias.shape
    return plan(
        machine,
        tokens=operands.r.shape[0],
        hidden=operands.r.shape[1],
        intermediate=rows // 2,
        experts=count,
        active=operands.active,
        rounds_x=operands.activation == ROUNDED,
    )


@decode_fc1.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_fc1(operands: DecodeFc1Operands) -> Tensor:
    r, experts = operands.r, operands.experts
    intermediate = experts.gate_up_bias.shape[1] // 2
    inner = torch.empty(r.shape[0], operands.active, intermediate, dtype=r.dtype, device=r.device)
    weights = (experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
    args = (r, operands.norm, operands.logits, *weights, inner, operands.eps, operands.limit, r.shape[0])
    _plan_for(find_machine(r.device), operands).launch(args, operands.dependent)
    return inner


decode_fc1.prefer("cuda")


@decode_fc1.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    def plan_big(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        return plan(machine, tokens=tokens, rounds_x=rounds_x, **expert_sizes(GPT_OSS))

    yield from list_plans(capability, plan_big, formats=(True,))


def expert_sizes(sizes: Sizes) -> dict[str, int]:
    return {
        "hidden": sizes.hidden,
        "intermediate": sizes.intermediate,
        "experts": sizes.experts,
        "active": sizes.active,
    }


@decode_fc1.samples
def samples(device: torch.device) -> Iterator[Sample]:
    for label, tokens, sizes, draw in list_cases(device):
        operands = DecodeFc1Operands(
            experts=random_experts(sizes.experts, sizes.hidden, sizes.intermediate, draw.generator),
            logits=draw.logits(tokens, sizes.experts),
            r=draw.normal(tokens, sizes.hidden),
            norm=draw.normal(sizes.hidden),
            eps=1e-5,
            limit=7.0,
            active=sizes.active,
        )
        yield from rounded_too(label, "mxfp4-weight", operands)


@decode_fc1.workloads
@few_tokens
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec

    def draw() -> tuple[DecodeFc1Operands]:
        operands = DecodeFc1Operands(
            r=shapes.normal(m, spec.hidden_size),
            norm=shapes.bias(spec.hidden_size),
            eps=spec.rms_eps,
            logits=draw_logits(shapes, m),
            experts=shapes.next_experts(),
            limit=spec.swiglu_limit,
            active=spec.num_active,
            activation=activation,
        )
        return (operands,)

    flops = 4.0 * m * spec.num_active * spec.hidden_size * spec.intermediate_size
    yield WorkloadPart("", flops, shapes.expert_copies * shapes.experts_bytes, draw)
