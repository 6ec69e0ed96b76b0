"""The experts' second matmul, weighted and added to the residual, for one to eight tokens.

in   DecodeFc2Operands
out  r  [T, H] bf16, the same tensor  r + sum over a of weight[t, a] * (down @ inner[t, a] + bias)
     weight = softmax over the A largest logits of a token
The sum over experts and the residual are each rounded to bf16. `cuda` converts `inner` to 14-bit integers that
share a scale per 64 to 256 columns, and multiplies them exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.formats import mxfp4
from firesteel.kernels.decode.fc1 import MOST_ACTIVE, chosen_bytes, count_chosen, expert_sizes
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
from firesteel.kernels.ops.moe_matmul import moe_matmul
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
from firesteel.kernels.stream.ring import MOST_TOKENS, STRIP_ROWS, Stream, align, refuse_columns
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases, rounded_too
from firesteel.kernels.stream.workload import draw_logits, few_tokens

STAGES = 6
MOST_STRIPS = 12  # per CTA: their sums are kept beside the ring


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFc2Operands(RoundedOperands):
    """`activation` is bf16 or mxfp8: what `inner` is rounded to before it meets the weights."""

    inner: Tensor  # [T, A, I] bf16, of decode_fc1: largest logit first
    logits: Tensor  # [T, E] fp32, of decode_router
    experts: Experts  # packed weights
    r: Tensor  # [T, H] bf16, the residual, added to
    # May begin before the decode_fc1 ahead of it ends, and after no other kernel: logits are read before its wait.
    dependent: bool = False


def _bytes(operands: DecodeFc2Operands) -> int:
    inner, logits, experts = operands.inner, operands.logits, operands.experts
    rows = experts.down_codes[0].nbytes + experts.down_scales[0].nbytes + experts.down_bias[0].nbytes
    return inner.nbytes + logits.nbytes + count_chosen(logits, inner.shape[1]) * rows + 2 * operands.r.nbytes


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=1, why="two roundings, the larger of the residual; sums in free order"),
    keeps_choice=True,
    profile=OpProfile(EXPERTS, reads="moe_matmul.down"),
    replaces=(moe_matmul,),
)
def decode_fc2(operands: DecodeFc2Operands) -> Tensor:
    r, experts = operands.r, operands.experts
    chosen, ids = operands.logits.topk(operands.inner.shape[1], dim=-1)
    weights, update = chosen.softmax(-1), torch.zeros(r.shape, dtype=torch.float32, device=r.device)
    rounded = round_activation(operands.inner.float(), operands.activation)
    for expert in ids.unique().tolist():
        rows, ranks = (ids == expert).nonzero(as_tuple=True)
        down = mxfp4.dequantize(experts.down_codes[expert], experts.down_scales[expert])
        outer = torch.addmm(experts.down_bias[expert].float(), rounded[rows, ranks], down.T)
        update.index_add_(0, rows, outer * weights[rows, ranks, None])
    return r.copy_(r.float() + update.to(r.dtype).float())


def _accepts(operands: DecodeFc2Operands) -> str | None:
    inner, logits, experts, r = operands.inner, operands.logits, operands.experts, operands.r
    if inner.shape[1] > MOST_ACTIVE:
        return f"takes up to {MOST_ACTIVE} experts a token, not {inner.shape[1]}"
    if r.shape[1] % STRIP_ROWS:
        return f"reads weights by {STRIP_ROWS} rows, not {r.shape[1]}"
    return (
        refuse_tokens(r)
        or refuse_types(inner, r, experts.down_bias)
        or refuse_types(logits, wanted=torch.float32)
        or refuse_layout(inner, r, experts.down_codes, experts.down_scales)
        or refuse_strides(logits, experts.down_bias)
        or refuse_columns(True, inner.shape[2])
        or refuse_rounding(None, operands.activation)
        or refuse_here(r, lambda machine: _plan_for(machine, operands))
        or (refuse_strips(find_machine(r.device), r.shape[1]) if r.is_cuda else None)
    )


def held_bytes(stream: Stream, active: int, holds_all: bool) -> tuple[int, int]:
    """Returns the bytes of what the warps hold of `inner`, and those of its scales.

    With `holds_all` a warp holds its columns of all rows at once, else those of one expert after another.
    """
    rows = stream.warps * (stream.tokens * active if holds_all else stream.num_held)
    return align(rows * 128 * stream.steps_each), align(4 * rows)


def shared_bytes(stream: Stream, active: int, holds_all: bool) -> int:
    held = sum(held_bytes(stream, active, holds_all))
    return stream.ring_bytes + held + sum_bytes(stream) + chosen_bytes(stream.tokens, active)


def sum_bytes(stream: Stream) -> int:
    return align(4 * MOST_STRIPS * STRIP_ROWS * stream.tokens)


def refuse_strips(machine: Machine, hidden: int) -> str | None:
    """Returns why a GPU has too few SMs for this many rows, or None."""
    most = MOST_STRIPS * STRIP_ROWS * machine.num_sms
    return None if hidden <= most else f"gives {machine.num_sms} SMs up to {most} rows of fc2, not {hidden}"


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
    """Plans to hold all of `inner` at once if that leaves room for two stages."""
    sizes = {
        "HIDDEN": hidden,
        "INTERMEDIATE": intermediate,
        "EXPERTS": experts,
        "ACTIVE": active,
        "ROUNDS_X": rounds_x,
        "MOST_WIDTH": most_width(machine),
    }

    def plan_holding(holds_all: bool) -> Streamed:
        return plan_streamed(
            "decode_fc2",
            machine,
            is_fp4=True,
            columns=intermediate,
            tokens=tokens,
            stages=STAGES,
            shared=lambda stream: shared_bytes(stream, active, holds_all),
            strips=hidden // STRIP_ROWS,
            sizes={**sizes, "HOLDS_ALL": holds_all, "MOST_STRIPS": MOST_STRIPS},
            alone=True,
            fewest_held=MOST_TOKENS if holds_all else most_width(machine),
        )

    at_once = plan_holding(True)
    return at_once if at_once.stream.stages > 1 and at_once.refuse(machine) is None else plan_holding(False)


def _plan_for(machine: Machine, operands: DecodeFc2Operands) -> Streamed:
    tokens, active, intermediate = operands.inner.shape
    return plan(
        machine,
        tokens=tokens,
        hidden=operands.r.shape[1],
        intermediate=intermediate,
        experts=operands.experts.down_bias.shape[0],
        active=active,
        rounds_x=operands.activation == ROUNDED,
    )


@decode_fc2.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_fc2(operands: DecodeFc2Operands) -> Tensor:
    r, experts = operands.r, operands.experts
    weights = (experts.down_codes, experts.down_scales, experts.down_bias)
    args = (operands.inner, operands.logits, *weights, r, r.shape[0])
    _plan_for(find_machine(r.device), operands).launch(args, operands.dependent)
    return r


decode_fc2.prefer("cuda")


@decode_fc2.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    def plan_big(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        return plan(machine, tokens=tokens, rounds_x=rounds_x, **expert_sizes(GPT_OSS))

    yield from list_plans(capability, plan_big, formats=(True,))


@decode_fc2.samples
def samples(device: torch.device) -> Iterator[Sample]:
    for label, tokens, sizes, draw in list_cases(device):
        operands = DecodeFc2Operands(
            experts=random_experts(sizes.experts, sizes.hidden, sizes.intermediate, draw.generator),
            logits=draw.logits(tokens, sizes.experts),
            inner=draw.normal(tokens, sizes.active, sizes.intermediate),
            r=draw.normal(tokens, sizes.hidden),
        )
        yield from rounded_too(label, "mxfp4-weight", operands)


@decode_fc2.workloads
@few_tokens
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec

    def draw() -> tuple[DecodeFc2Operands]:
        operands = DecodeFc2Operands(
            inner=shapes.normal(m, spec.num_active, spec.intermediate_size),
            logits=draw_logits(shapes, m),
            experts=shapes.next_experts(),
            r=shapes.normal(m, spec.hidden_size),
            activation=activation,
        )
        return (operands,)

    flops = 2.0 * m * spec.num_active * spec.hidden_size * spec.intermediate_size
    yield WorkloadPart("", flops, shapes.expert_copies * shapes.experts_bytes, draw)
