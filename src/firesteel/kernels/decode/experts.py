"""Both matmuls of the experts in one kernel: decode_fc1 and decode_fc2 in a row, for one to eight tokens.

in   DecodeExpertsOperands
out  r  [T, H] bf16, the same tensor, as decode_fc2 leaves it
Rounded as those two round.
`cuda:even`, for two tokens or more, shares both matmuls out by what strips cost; its CTAs meet at a barrier between
the matmuls and at another before their parts are added up.
`cuda:passed`, for one token, has no barrier: a CTA takes rows of fc1 from the CTA that computed them when it needs
them, and works on other experts until then.
In both, CTAs wait for each other, so all must be resident at once: no two calls may be in flight on different
streams of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.decode.experts_plan import list_kernels, plan_even, plan_passed
from firesteel.kernels.decode.fc1 import (
    MOST_ACTIVE,
    DecodeFc1Operands,
    count_chosen,
    decode_fc1,
)
from firesteel.kernels.decode.fc2 import (
    DecodeFc2Operands,
    decode_fc2,
    refuse_strips,
)
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import RoundedOperands
from firesteel.kernels.op.profile import EXPERTS, OpProfile
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Experts, random_experts
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.stream.plan import (
    ROUNDED,
    Machine,
    Streamed,
    find_machine,
)
from firesteel.kernels.stream.refuse import (
    refuse_here,
    refuse_layout,
    refuse_rounding,
    refuse_strides,
    refuse_tokens,
    refuse_types,
)
from firesteel.kernels.stream.ring import STRIP_ROWS, refuse_columns
from firesteel.kernels.stream.shapes import list_cases, rounded_too
from firesteel.kernels.stream.workload import draw_logits, few_tokens

MXFP8_TOLERANCE = bf16(
    ulps=4, why="of fc1's values a few in a hundred are a unit of bf16 apart; some of those end at the next code"
)
# Fetched while fc2's last rows are multiplied; more delays what the next kernels read themselves.
MOST_AHEAD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeExpertsOperands(RoundedOperands):
    """`activation` is bf16 or mxfp8: what the norm and the rows between the two matmuls are rounded to."""

    r: Tensor  # [T, H] bf16, the residual, added to
    norm: Tensor  # [H] bf16
    eps: float
    logits: Tensor  # [T, E] fp32, of decode_router
    experts: Experts  # packed weights, hidden and intermediate sizes the same
    limit: float  # of the clamp
    active: int  # experts per token, A
    ahead: Tensor | None = None  # weights that the next kernel reads: fetched into the cache when memory falls idle
    dependent: bool = False  # may begin before the kernel ahead of it ends; only the norm's weights are read before


def fits(experts: Experts) -> bool:
    """Returns whether both matmuls have rows of the same length."""
    return experts.gate_up_codes.shape[2] == experts.down_codes.shape[2]


def _bytes(operands: DecodeExpertsOperands) -> int:
    chosen_weights = count_chosen(operands.logits, operands.active) * operands.experts.expert_bytes
    return 2 * operands.r.nbytes + operands.norm.nbytes + operands.logits.nbytes + chosen_weights


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=2, why="as decode_fc2, whose input was rounded by decode_fc1: four roundings"),
    keeps_choice=True,
    profile=OpProfile(
        EXPERTS,
        reads="moe_matmul",
        kernels={"decode_experts_even": "moe_matmul", "decode_experts_passed": "moe_matmul"},
    ),
    replaces=(rms_norm, moe_matmul),
    combines=(decode_fc1, decode_fc2),
)
def decode_experts(operands: DecodeExpertsOperands) -> Tensor:
    first = DecodeFc1Operands(
        r=operands.r,
        norm=operands.norm,
        eps=operands.eps,
        logits=operands.logits,
        experts=operands.experts,
        limit=operands.limit,
        active=operands.active,
        activation=operands.activation,
    )
    second = DecodeFc2Operands(
        inner=decode_fc1.reference(first),
        logits=operands.logits,
        experts=operands.experts,
        r=operands.r,
        activation=operands.activation,
    )
    return decode_fc2.reference(second)


def _refuse(operands: DecodeExpertsOperands) -> str | None:
    """Returns why no implementation here takes the operands, whatever its plan, or None."""
    r, norm, logits, experts = operands.r, operands.norm, operands.logits, operands.experts
    if operands.active > MOST_ACTIVE:
        return f"takes up to {MOST_ACTIVE} experts a token, not {operands.active}"
    if not fits(experts):
        return "takes experts whose rows are of one length: use decode_fc1 and decode_fc2"
    if r.shape[1] % STRIP_ROWS:
        return f"reads weights by {STRIP_ROWS} rows, not {r.shape[1]}"
    gate_up = (experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
    return (
        refuse_tokens(r)
        or refuse_types(r, norm, experts.gate_up_bias, experts.down_bias)
        or refuse_types(logits, wanted=torch.float32)
        or refuse_layout(r, norm, *gate_up, experts.down_codes, experts.down_scales, operands.ahead)
        or refuse_strides(logits, experts.down_bias)
        or refuse_columns(True, r.shape[1])
        or refuse_rounding(None, operands.activation)
        or (refuse_strips(find_machine(r.device), r.shape[1]) if r.is_cuda else None)
    )


def _list_weights(experts: Experts) -> tuple[Tensor, ...]:
    """Returns the weights of both matmuls in the order in which all kernels here take them."""
    up = (experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
    return (*up, experts.down_codes, experts.down_scales, experts.down_bias)


def _count_ahead(ahead: Tensor | None) -> int:
    """Returns how many bytes of `ahead` are fetched."""
    return 0 if ahead is None else min(ahead.nbytes, MOST_AHEAD_BYTES)


def _sizes(operands: DecodeExpertsOperands) -> dict[str, Any]:
    """Returns the arguments that all plans have in common."""
    return {
        "hidden": operands.r.shape[1],
        "experts": operands.experts.down_bias.shape[0],
        "active": operands.active,
        "rounds_x": operands.activation == ROUNDED,
    }


def _plan_even_for(machine: Machine, operands: DecodeExpertsOperands) -> Streamed:
    return plan_even(machine, tokens=operands.r.shape[0], **_sizes(operands))


def _accepts_even(operands: DecodeExpertsOperands) -> str | None:
    if operands.r.shape[0] == 1:
        return "is for two tokens or more"
    return (
        _refuse(operands)
        or refuse_layout(operands.experts.down_bias)
        or refuse_here(operands.r, lambda machine: _plan_even_for(machine, operands))
    )


@decode_experts.implementation("cuda:even", needs=cuda_ready(), accepts=_accepts_even)
def cuda_decode_experts_even(operands: DecodeExpertsOperands) -> Tensor:
    r, ahead = operands.r, operands.ahead
    tokens, hidden = r.shape
    inner = torch.empty(tokens, operands.active, hidden, dtype=r.dtype, device=r.device)
    parts = torch.empty(tokens, operands.active, hidden, dtype=torch.float32, device=r.device)
    weights, fetched = _list_weights(operands.experts), (ahead, _count_ahead(ahead))
    numbers = (operands.eps, operands.limit, tokens)
    args = (r, operands.norm, operands.logits, *weights, inner, parts, *fetched, *numbers)
    _plan_even_for(find_machine(r.device), operands).launch(args, operands.dependent)
    return r


def _accepts_passed(operands: DecodeExpertsOperands) -> str | None:
    if operands.r.shape[0] != 1:
        return f"is for one token, not {operands.r.shape[0]}"
    return _refuse(operands) or refuse_here(operands.r, lambda machine: plan_passed(machine, **_sizes(operands)))


@decode_experts.implementation("cuda:passed", needs=cuda_ready(), accepts=_accepts_passed)
def cuda_decode_experts_passed(operands: DecodeExpertsOperands) -> Tensor:
    r, ahead = operands.r, operands.ahead
    weights, fetched = _list_weights(operands.experts), (ahead, _count_ahead(ahead))
    args = (r, operands.norm, operands.logits, *weights, *fetched, operands.eps, operands.limit)
    plan_passed(find_machine(r.device), **_sizes(operands)).launch(args, operands.dependent)
    return r


decode_experts.prefer("cuda:passed", "cuda:even")
decode_experts.device_code(list_kernels)


@decode_experts.samples
def samples(device: torch.device) -> Iterator[Sample]:
    for label, tokens, sizes, draw in list_cases(device):
        operands = DecodeExpertsOperands(
            experts=random_experts(sizes.experts, sizes.hidden, sizes.hidden, draw.generator),
            logits=draw.logits(tokens, sizes.experts),
            r=draw.normal(tokens, sizes.hidden),
            norm=draw.normal(sizes.hidden),
            eps=1e-5,
            limit=7.0,
            active=sizes.active,
        )
        yield from rounded_too(label, "mxfp4-weight", operands, MXFP8_TOLERANCE)


@decode_experts.workloads
@few_tokens
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec

    def draw() -> tuple[DecodeExpertsOperands]:
        operands = DecodeExpertsOperands(
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

    flops = 6.0 * m * spec.num_active * spec.hidden_size * spec.intermediate_size
    yield WorkloadPart("", flops, shapes.expert_copies * shapes.experts_bytes, draw)
