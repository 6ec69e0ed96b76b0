"""Both matmuls of the experts in one kernel: decode_fc1 and decode_fc2 in a row, for one to eight tokens.

in   r          [T, H] bf16      residual, added to
     norm       [H] bf16, eps
     logits     [T, E] fp32      of decode_router
     experts    packed weights (Experts), hidden and intermediate sizes the same
     limit      of the clamp
     active     experts per token
     activation bf16, or mxfp8: what the norm and the rows between the two are rounded to
     ahead      weights that the next kernel reads, or None: fetched into the cache when memory falls idle
     dependent  may begin before what is ahead of it ends: nothing but the norm's weights is read before its wait
out  r          the same tensor, as decode_fc2 leaves it
Rounded as the two are. `cuda` lets all its programs meet between the two, so all of them must run at once: no two
calls may be under way on different streams of a GPU. So does `cuda:even`, for two tokens or more: it shares both
matmuls out by what strips cost, and programs meet once more before what they found is added up. `cuda:passed`, for
one token, has them never meet: what one finds of fc1, others take when they need it, busy with other experts. They
wait for it, so for this way too all must run at once, and no two calls on different streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.decode.fc1 import MOST_ACTIVE, chosen_bytes, count_chosen, decode_fc1, expert_sizes
from firesteel.kernels.decode.fc2 import MOST_STRIPS, decode_fc2, held_bytes, refuse_strips, sum_bytes
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.ops.moe_matmul import random_experts
from firesteel.kernels.stream.launch import (
    ROUNDED,
    TOKENS,
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
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases, rounded_too

STAGES = 7
FLIGHT = 3
PASSED_STAGES, PASSED_FLIGHT = 8, 2  # of cuda:passed
MXFP8_TOLERANCE = bf16(
    ulps=4, why="of fc1's values a few in a hundred are a unit of bf16 apart; some of those end at the next code"
)
# Fetched while fc2's last rows are multiplied; more delays what the next kernels read themselves.
MOST_AHEAD_BYTES = 8 << 20


def fits(experts: Experts) -> bool:
    """Whether both matmuls have rows of the same length."""
    return experts.gate_up_codes.shape[2] == experts.down_codes.shape[2]


def _bytes(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", ahead: Tensor | None = None, dependent: bool = False,
) -> int:  # fmt: skip
    parts = (
        experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias, experts.down_codes,
        experts.down_scales, experts.down_bias,
    )  # fmt: skip
    each = sum(part[0].nbytes for part in parts)
    return 2 * r.nbytes + norm.nbytes + logits.nbytes + count_chosen(logits, active) * each


@define_op(
    bytes=_bytes, tolerance=bf16(ulps=2, why="as decode_fc2, whose input was rounded by decode_fc1: four roundings")
)
def decode_experts(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", ahead: Tensor | None = None, dependent: bool = False,
) -> Tensor:  # fmt: skip
    inner = decode_fc1.reference(r, norm, eps, logits, experts, limit, active, activation)
    return decode_fc2.reference(inner, logits, experts, r, activation)


def _refuse_inputs(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", ahead: Tensor | None = None, dependent: bool = False,
) -> str | None:  # fmt: skip
    """Whatever the plan."""
    if active > MOST_ACTIVE:
        return f"takes up to {MOST_ACTIVE} experts a token, not {active}"
    if not fits(experts):
        return "takes experts whose rows are of one length: use decode_fc1 and decode_fc2"
    if r.shape[1] % STRIP_ROWS:
        return f"reads weights by {STRIP_ROWS} rows, not {r.shape[1]}"
    return (
        refuse_tokens(r)
        or refuse_types(r, norm, experts.gate_up_bias, experts.down_bias)
        or refuse_types(logits, wanted=torch.float32)
        or refuse_layout(
            r,
            norm,
            experts.gate_up_codes,
            experts.gate_up_scales,
            experts.gate_up_bias,
            experts.down_codes,
            experts.down_scales,
            ahead,
        )
        or refuse_strides(logits, experts.down_bias)
        or refuse_columns(True, r.shape[1])
        or refuse_rounding(None, activation)
        or (refuse_strips(find_machine(r.device), r.shape[1]) if r.is_cuda else None)
    )


def shared_bytes(stream: Stream, active: int, holds_all: bool) -> int:
    held, units = held_bytes(stream, active, holds_all)
    beside = units + sum_bytes(stream) + chosen_bytes(stream.tokens, active)
    return stream.ring_bytes + max(held, stream.x_bytes) + beside


@keep
def plan(
    machine: Machine, *, tokens: int, hidden: int, experts: int, active: int, rounds_x: bool = False
) -> Streamed:
    """As many programs as SMs at most; `inner` is held as a whole where that leaves room for two stages."""
    sizes = {
        "HIDDEN": hidden, "INTERMEDIATE": hidden, "EXPERTS": experts, "ACTIVE": active, "ROUNDS_X": rounds_x,
        "MOST_WIDTH": most_width(machine),
    }  # fmt: skip

    def plan_holding(holds_all: bool) -> Streamed:
        return plan_streamed(
            "decode_experts", machine, is_fp4=True, columns=hidden, tokens=tokens, stages=STAGES,
            shared=lambda stream: shared_bytes(stream, active, holds_all), strips=hidden // STRIP_ROWS,
            sizes={**sizes, "HOLDS_ALL": holds_all, "MOST_STRIPS": MOST_STRIPS}, may_pair=active > 1,
            flight=FLIGHT, alone=True,
        )  # fmt: skip

    at_once = plan_holding(True)
    return at_once if at_once.stream.stages > 1 and at_once.refuse(machine) is None else plan_holding(False)


def _arguments(experts: Experts, ahead: Tensor | None) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, int]]:
    """Weights of both matmuls, and what is fetched ahead with its bytes, as all kernels here take them."""
    up = (experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
    down = (experts.down_codes, experts.down_scales, experts.down_bias)
    return (*up, *down), (ahead, 0 if ahead is None else min(ahead.nbytes, MOST_AHEAD_BYTES))


def _sizes(r: Tensor, experts: Experts, active: int, activation: str) -> dict[str, Any]:
    """Of a plan, whatever the number of tokens."""
    return {
        "hidden": r.shape[1], "experts": experts.down_bias.shape[0], "active": active,
        "rounds_x": activation == ROUNDED,
    }  # fmt: skip


def _accepts(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", ahead: Tensor | None = None, dependent: bool = False,
) -> str | None:  # fmt: skip
    return _refuse_inputs(
        r, norm, eps, logits, experts, limit, active, activation, ahead, dependent
    ) or refuse_here(r, lambda machine: plan(machine, tokens=r.shape[0], **_sizes(r, experts, active, activation)))


@decode_experts.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_experts(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", ahead: Tensor | None = None, dependent: bool = False,
) -> Tensor:  # fmt: skip
    inner = torch.empty(r.shape[0], active, r.shape[1], dtype=r.dtype, device=r.device)
    weights, fetched = _arguments(experts, ahead)
    args = (r, norm, logits, *weights, inner, *fetched, eps, limit, r.shape[0])
    planned = plan(find_machine(r.device), tokens=r.shape[0], **_sizes(r, experts, active, activation))
    planned.launch(args, dependent)
    return r


def even_bytes(stream: Stream, active: int) -> int:
    shares = align(4 * 4)  # `Parts` in csrc/decode_experts_even.cu
    return stream.ring_bytes + stream.x_bytes + stream.scratch_bytes + chosen_bytes(stream.tokens, active) + shares


@keep
def plan_even(
    machine: Machine, *, tokens: int, hidden: int, experts: int, active: int, rounds_x: bool = False
) -> Streamed:
    """For two tokens or more."""
    sizes = {
        "HIDDEN": hidden, "INTERMEDIATE": hidden, "EXPERTS": experts, "ACTIVE": active, "ROUNDS_X": rounds_x,
        "MOST_WIDTH": most_width(machine),
    }  # fmt: skip
    return plan_streamed(
        "decode_experts_even", machine, is_fp4=True, columns=hidden, tokens=tokens, stages=STAGES,
        shared=lambda stream: even_bytes(stream, active), strips=hidden // STRIP_ROWS, sizes=sizes, flight=FLIGHT,
        alone=True,
    )  # fmt: skip


def _accepts_even(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", ahead: Tensor | None = None, dependent: bool = False,
) -> str | None:  # fmt: skip
    if r.shape[0] == 1:
        return "is for two tokens or more"
    return (
        _refuse_inputs(r, norm, eps, logits, experts, limit, active, activation, ahead, dependent)
        or refuse_layout(experts.down_bias)
        or refuse_here(
            r, lambda machine: plan_even(machine, tokens=r.shape[0], **_sizes(r, experts, active, activation))
        )
    )


@decode_experts.implementation("cuda:even", needs=cuda_ready(), accepts=_accepts_even)
def cuda_decode_experts_even(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", ahead: Tensor | None = None, dependent: bool = False,
) -> Tensor:  # fmt: skip
    tokens, hidden = r.shape
    inner = torch.empty(tokens, active, hidden, dtype=r.dtype, device=r.device)
    parts = torch.empty(tokens, active, hidden, dtype=torch.float32, device=r.device)
    weights, fetched = _arguments(experts, ahead)
    args = (r, norm, logits, *weights, inner, parts, *fetched, eps, limit, tokens)
    planned = plan_even(find_machine(r.device), tokens=tokens, **_sizes(r, experts, active, activation))
    planned.launch(args, dependent)
    return r


def passed_bytes(stream: Stream, active: int) -> int:
    plan = align(16 + 4 * active + MOST_STRIPS * active + 1)  # barriers, weights, places
    beside = stream.scratch_bytes + sum_bytes(stream) + chosen_bytes(stream.tokens, active) + plan
    return stream.ring_bytes + stream.x_bytes + align(2 * stream.columns) + beside


@keep
def plan_passed(machine: Machine, *, hidden: int, experts: int, active: int, rounds_x: bool = False) -> Streamed:
    """For one token."""
    sizes = {
        "HIDDEN": hidden, "INTERMEDIATE": hidden, "EXPERTS": experts, "ACTIVE": active, "ROUNDS_X": rounds_x,
        "MOST_WIDTH": 1, "HOLDS_ALL": True, "MOST_STRIPS": MOST_STRIPS,
    }  # fmt: skip
    return plan_streamed(
        "decode_experts_passed", machine, is_fp4=True, columns=hidden, tokens=1, stages=PASSED_STAGES,
        shared=lambda stream: passed_bytes(stream, active), strips=hidden // STRIP_ROWS, sizes=sizes,
        may_pair=active > 1, flight=PASSED_FLIGHT, alone=True,
    )  # fmt: skip


def _accepts_passed(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", ahead: Tensor | None = None, dependent: bool = False,
) -> str | None:  # fmt: skip
    if r.shape[0] != 1:
        return f"is for one token, not {r.shape[0]}"
    return _refuse_inputs(
        r, norm, eps, logits, experts, limit, active, activation, ahead, dependent
    ) or refuse_here(r, lambda machine: plan_passed(machine, **_sizes(r, experts, active, activation)))


@decode_experts.implementation("cuda:passed", needs=cuda_ready(), accepts=_accepts_passed)
def cuda_decode_experts_passed(
    r: Tensor, norm: Tensor, eps: float, logits: Tensor, experts: Experts, limit: float, active: int,
    activation: str = "bf16", ahead: Tensor | None = None, dependent: bool = False,
) -> Tensor:  # fmt: skip
    weights, fetched = _arguments(experts, ahead)
    args = (r, norm, logits, *weights, *fetched, eps, limit)
    plan_passed(find_machine(r.device), **_sizes(r, experts, active, activation)).launch(args, dependent)
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
        experts = random_experts(sizes.experts, sizes.hidden, sizes.hidden, draw.generator)
        logits = draw.logits(tokens, sizes.experts)
        r, norm = draw.normal(tokens, sizes.hidden), draw.normal(sizes.hidden)
        args = (r, norm, 1e-5, logits, experts, 7.0, sizes.active)
        yield from rounded_too(label, "mxfp4-weight", args, MXFP8_TOLERANCE)
