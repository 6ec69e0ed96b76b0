"""Both matmuls of the experts in one kernel: decode_fc1 and decode_fc2 in a row, for one to eight tokens.

in   DecodeExpertsOperands
out  r  [T, H] bf16, the same tensor, as decode_fc2 leaves it
Rounded as the two are.
`cuda` has a barrier of all its CTAs between the two matmuls.
`cuda:even`, for two tokens or more, shares both matmuls out by what strips cost; its CTAs meet at one more barrier
before their parts are added up.
`cuda:passed`, for one token, has no barrier: a CTA takes rows of fc1 from the CTA that computed them when it needs
them, and works on other experts until then.
In all three CTAs wait for each other, so all must be resident at once: no two calls may be in flight on different
streams of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.decode.fc1 import (
    MOST_ACTIVE,
    DecodeFc1Operands,
    chosen_bytes,
    count_chosen,
    decode_fc1,
    expert_sizes,
)
from firesteel.kernels.decode.fc2 import (
    MOST_STRIPS,
    DecodeFc2Operands,
    decode_fc2,
    held_bytes,
    refuse_strips,
    sum_bytes,
)
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.operands import RoundedOperands
from firesteel.kernels.op.profile import EXPERTS, OpProfile
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Experts, random_experts
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.stream.build import keep
from firesteel.kernels.stream.plan import (
    ROUNDED,
    TOKENS,
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
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases, rounded_too
from firesteel.kernels.stream.workload import draw_logits, few_tokens

STAGES = 7
FLIGHT = 3
PASSED_STAGES, PASSED_FLIGHT = 8, 2  # of cuda:passed
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


def shared_bytes(stream: Stream, active: int, holds_all: bool) -> int:
    held, units = held_bytes(stream, active, holds_all)
    beside = units + sum_bytes(stream) + chosen_bytes(stream.tokens, active)
    return stream.ring_bytes + max(held, stream.x_bytes) + beside


def _defines(machine: Machine, hidden: int, experts: int, active: int, rounds_x: bool) -> dict[str, int]:
    return {
        "HIDDEN": hidden,
        "INTERMEDIATE": hidden,
        "EXPERTS": experts,
        "ACTIVE": active,
        "ROUNDS_X": rounds_x,
        "MOST_WIDTH": most_width(machine),
    }


@keep
def plan(
    machine: Machine, *, tokens: int, hidden: int, experts: int, active: int, rounds_x: bool = False
) -> Streamed:
    """Plans at most one CTA per SM; `inner` is held as a whole if that leaves room for two stages."""
    sizes = _defines(machine, hidden, experts, active, rounds_x)

    def plan_holding(holds_all: bool) -> Streamed:
        return plan_streamed(
            "decode_experts",
            machine,
            is_fp4=True,
            columns=hidden,
            tokens=tokens,
            stages=STAGES,
            shared=lambda stream: shared_bytes(stream, active, holds_all),
            strips=hidden // STRIP_ROWS,
            sizes={**sizes, "HOLDS_ALL": holds_all, "MOST_STRIPS": MOST_STRIPS},
            may_pair=active > 1,
            flight=FLIGHT,
            alone=True,
        )

    at_once = plan_holding(True)
    return at_once if at_once.stream.stages > 1 and at_once.refuse(machine) is None else plan_holding(False)


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


def _plan_for(machine: Machine, operands: DecodeExpertsOperands) -> Streamed:
    return plan(machine, tokens=operands.r.shape[0], **_sizes(operands))


def _accepts(operands: DecodeExpertsOperands) -> str | None:
    return _refuse(operands) or refuse_here(operands.r, lambda machine: _plan_for(machine, operands))


@decode_experts.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_experts(operands: DecodeExpertsOperands) -> Tensor:
    r, ahead = operands.r, operands.ahead
    inner = torch.empty(r.shape[0], operands.active, r.shape[1], dtype=r.dtype, device=r.device)
    weights, fetched = _list_weights(operands.experts), (ahead, _count_ahead(ahead))
    numbers = (operands.eps, operands.limit, r.shape[0])
    args = (r, operands.norm, operands.logits, *weights, inner, *fetched, *numbers)
    _plan_for(find_machine(r.device), operands).launch(args, operands.dependent)
    return r


def even_bytes(stream: Stream, active: int) -> int:
    shares = align(4 * 4)  # `Parts` in csrc/decode_experts_even.cu
    return stream.ring_bytes + stream.x_bytes + stream.scratch_bytes + chosen_bytes(stream.tokens, active) + shares


@keep
def plan_even(
    machine: Machine, *, tokens: int, hidden: int, experts: int, active: int, rounds_x: bool = False
) -> Streamed:
    """Plans `cuda:even`, for two tokens or more."""
    return plan_streamed(
        "decode_experts_even",
        machine,
        is_fp4=True,
        columns=hidden,
        tokens=tokens,
        stages=STAGES,
        shared=lambda stream: even_bytes(stream, active),
        strips=hidden // STRIP_ROWS,
        sizes=_defines(machine, hidden, experts, active, rounds_x),
        flight=FLIGHT,
        alone=True,
    )


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


def passed_bytes(stream: Stream, active: int) -> int:
    plan = align(16 + 4 * active + MOST_STRIPS * active + 1)  # barriers, weights, places
    beside = stream.scratch_bytes + sum_bytes(stream) + chosen_bytes(stream.tokens, active) + plan
    return stream.ring_bytes + stream.x_bytes + align(2 * stream.columns) + beside


@keep
def plan_passed(machine: Machine, *, hidden: int, experts: int, active: int, rounds_x: bool = False) -> Streamed:
    """Plans `cuda:passed`, for one token."""
    sizes = _defines(machine, hidden, experts, active, rounds_x)
    return plan_streamed(
        "decode_experts_passed",
        machine,
        is_fp4=True,
        columns=hidden,
        tokens=1,
        stages=PASSED_STAGES,
        shared=lambda stream: passed_bytes(stream, active),
        strips=hidden // STRIP_ROWS,
        sizes={**sizes, "MOST_WIDTH": 1, "HOLDS_ALL": True, "MOST_STRIPS": MOST_STRIPS},
        may_pair=active > 1,
        flight=PASSED_FLIGHT,
        alone=True,
    )


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


decode_experts.prefer("cuda:passed", "cuda:even", "cuda")


@decode_experts.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    sizes = expert_sizes(GPT_OSS)
    del sizes["intermediate"]

    def plan_big(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        return plan(machine, tokens=tokens, rounds_x=rounds_x, **sizes)

    yield from list_plans(capability, plan_big, formats=(True,))

    def plan_shares(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        return plan_even(machine, tokens=tokens, rounds_x=rounds_x, **sizes)

    yield from list_plans(capability, plan_shares, formats=(True,), tokens=TOKENS[1:], way="cuda:even")

    def plan_passing(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        return plan_passed(machine, rounds_x=rounds_x, **sizes)

    yield from list_plans(capability, plan_passing, formats=(True,), tokens=TOKENS[:1], way="cuda:passed")


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
