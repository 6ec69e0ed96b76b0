"""The experts' second matmul, weighted and added to the residual, for one to eight tokens.

in   inner      [T, A, I] bf16   of decode_fc1, largest logit first
     logits     [T, E] fp32      of decode_router
     experts    packed weights (Experts)
     r          [T, H] bf16      residual, added to
     activation bf16, or mxfp8: what `inner` is rounded to before it meets the weights
     dependent  may begin before the decode_fc1 ahead of it ends, and after no other kernel: the logits are read
                before its wait
out  r          the same tensor  r + sum over a of weight[t, a] * (down @ inner[t, a] + bias)
     weight = softmax over the A largest logits of a token
The sum over experts and the residual are each rounded to bf16. `cuda` cuts `inner` to whole numbers of 14 bits,
64 to 256 columns together, and multiplies them exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.formats import mxfp4
from firesteel.kernels.decode.fc1 import MOST_ACTIVE, chosen_bytes, count_chosen, expert_sizes
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.activation import round_activation
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.ops.moe_matmul import random_experts
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
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases, rounded_too

STAGES = 6
MOST_STRIPS = 12  # of a program: their sums are kept beside the ring


def _bytes(
    inner: Tensor, logits: Tensor, experts: Experts, r: Tensor, activation: str = "bf16", dependent: bool = False
) -> int:
    rows = experts.down_codes[0].nbytes + experts.down_scales[0].nbytes + experts.down_bias[0].nbytes
    return inner.nbytes + logits.nbytes + count_chosen(logits, inner.shape[1]) * rows + 2 * r.nbytes


@define_op(
    bytes=_bytes, tolerance=bf16(ulps=1, why="two roundings, the larger of the residual; sums in free order")
)
def decode_fc2(
    inner: Tensor, logits: Tensor, experts: Experts, r: Tensor, activation: str = "bf16", dependent: bool = False
) -> Tensor:
    chosen, ids = logits.topk(inner.shape[1], dim=-1)
    weights, update = chosen.softmax(-1), torch.zeros(r.shape, dtype=torch.float32, device=r.device)
    rounded = round_activation(inner.float(), activation)
    for expert in ids.unique().tolist():
        rows, ranks = (ids == expert).nonzero(as_tuple=True)
        down = mxfp4.dequantize(experts.down_codes[expert], experts.down_scales[expert])
        outer = torch.addmm(experts.down_bias[expert].float(), rounded[rows, ranks], down.T)
        update.index_add_(0, rows, outer * weights[rows, ranks, None])
    return r.copy_(r.float() + update.to(r.dtype).float())


def _accepts(
    inner: Tensor, logits: Tensor, experts: Experts, r: Tensor, activation: str = "bf16", dependent: bool = False
) -> str | None:
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
        or refuse_rounding(None, activation)
        or refuse_here(r, lambda machine: _plan_for(machine, inner, experts, r, activation))
        or (refuse_strips(find_machine(r.device), r.shape[1]) if r.is_cuda else None)
    )


def held_bytes(stream: Stream, active: int, holds_all: bool) -> tuple[int, int]:
    """Of what a warp holds of `inner`, its columns of every row at once (`holds_all`) or of one expert's after
    another, and of what those numbers are worth."""
    rows = stream.warps * stream.tokens * (active if holds_all else 1)
    return align(rows * 128 * stream.steps_each), align(4 * rows)


def shared_bytes(stream: Stream, active: int, holds_all: bool) -> int:
    held = sum(held_bytes(stream, active, holds_all))
    return stream.ring_bytes + held + sum_bytes(stream) + chosen_bytes(stream.tokens, active)


def sum_bytes(stream: Stream) -> int:
    return align(4 * MOST_STRIPS * STRIP_ROWS * stream.tokens)


def refuse_strips(machine: Machine, hidden: int) -> str | None:
    """Why a GPU has too few SMs for so many rows, or None."""
    most = MOST_STRIPS * STRIP_ROWS * machine.num_sms
    return None if hidden <= most else f"gives {machine.num_sms} SMs up to {most} rows of fc2, not {hidden}"


@keep
def plan(
    machine: Machine, *, tokens: int, hidden: int, intermediate: int, experts: int, active: int,
    rounds_x: bool = False,
) -> Streamed:  # fmt: skip
    """Everything is held at once where that leaves room for two stages."""
    sizes = {
        "HIDDEN": hidden, "INTERMEDIATE": intermediate, "EXPERTS": experts, "ACTIVE": active, "ROUNDS_X": rounds_x,
        "MOST_WIDTH": most_width(machine),
    }  # fmt: skip

    def plan_holding(holds_all: bool) -> Streamed:
        return plan_streamed(
            "decode_fc2", machine, is_fp4=True, columns=intermediate, tokens=tokens, stages=STAGES,
            shared=lambda stream: shared_bytes(stream, active, holds_all), strips=hidden // STRIP_ROWS,
            sizes={**sizes, "HOLDS_ALL": holds_all, "MOST_STRIPS": MOST_STRIPS}, alone=True,
        )  # fmt: skip

    at_once = plan_holding(True)
    return at_once if at_once.stream.stages > 1 and at_once.refuse(machine) is None else plan_holding(False)


def _plan_for(machine: Machine, inner: Tensor, experts: Experts, r: Tensor, activation: str) -> Streamed:
    tokens, active, intermediate = inner.shape
    return plan(
        machine, tokens=tokens, hidden=r.shape[1], intermediate=intermediate, experts=experts.down_bias.shape[0],
        active=active, rounds_x=activation == ROUNDED,
    )  # fmt: skip


@decode_fc2.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_fc2(
    inner: Tensor, logits: Tensor, experts: Experts, r: Tensor, activation: str = "bf16", dependent: bool = False
) -> Tensor:
    args = (inner, logits, experts.down_codes, experts.down_scales, experts.down_bias, r, r.shape[0])
    _plan_for(find_machine(r.device), inner, experts, r, activation).launch(args, dependent)
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
        experts = random_experts(sizes.experts, sizes.hidden, sizes.intermediate, draw.generator)
        logits = draw.logits(tokens, sizes.experts)
        inner, r = draw.normal(tokens, sizes.active, sizes.intermediate), draw.normal(tokens, sizes.hidden)
        yield from rounded_too(label, "mxfp4-weight", (inner, logits, experts, r))
