"""The heads' outputs through o, added to the residual, for one to eight tokens.

in   DecodeOOperands
out  r  [T, H] bf16, the same tensor  r + (mixed @ weight.T + bias)
The sum with the bias and the residual are each rounded to bf16. `cuda` converts what meets MXFP4 weights to 14-bit
integers that share a scale per 64 to 256 columns, and multiplies them exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import RoundedOperands
from firesteel.kernels.op.profile import DENSE, OpProfile
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Mxfp4Weight, weight_parts
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.stream.build import keep
from firesteel.kernels.stream.plan import ROUNDED, Machine, Streamed, find_machine, list_plans, plan_streamed
from firesteel.kernels.stream.refuse import (
    refuse_here,
    refuse_layout,
    refuse_rounding,
    refuse_strides,
    refuse_tokens,
    refuse_types,
)
from firesteel.kernels.stream.ring import STRIP_ROWS, Stream, refuse_weight
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases, rounded_too
from firesteel.kernels.stream.workload import few_tokens, list_dense

STAGES = {False: 6, True: 4}  # by whether weights are packed
FLIGHT = 2
MOST_PART_BYTES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOOperands(RoundedOperands):
    """`activation` is bf16 or mxfp8: what `mixed` is rounded to before it meets an MXFP4 weight."""

    mixed: Tensor  # [T, Q D] bf16, of decode_attention
    weight: Tensor | Mxfp4Weight  # [H, Q D] bf16 or MXFP4
    bias: Tensor  # [H] bf16
    r: Tensor  # [T, H] bf16, the residual, added to
    dependent: bool = False  # may begin before the kernel ahead of it ends; only the weight is read before that


def _bytes(operands: DecodeOOperands) -> int:
    return operands.mixed.nbytes + operands.weight.nbytes + operands.bias.nbytes + 2 * operands.r.nbytes


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=1, why="two roundings, the larger of the residual; sums in free order"),
    keeps_choice=True,
    profile=OpProfile(DENSE, reads="linear.o"),
    replaces=(linear,),
)
def decode_o(operands: DecodeOOperands) -> Tensor:
    product = LinearOperands(
        x=operands.mixed, weight=operands.weight, bias=operands.bias, activation=operands.activation
    )
    return operands.r.copy_(operands.r.float() + linear.reference(product).float())


def _accepts(operands: DecodeOOperands) -> str | None:
    mixed, weight, bias, r = operands.mixed, operands.weight, operands.bias, operands.r
    values, scales = weight_parts(weight)
    return (
        refuse_tokens(r)
        or refuse_types(mixed, bias, r, values if scales is None else None)
        or refuse_layout(mixed, r, values, scales)
        or refuse_strides(bias)
        or refuse_weight(weight)
        or refuse_rounding(weight, operands.activation)
        or refuse_here(r, lambda machine: _plan_for(machine, operands))
    )


def shared_bytes(stream: Stream) -> int:
    return stream.ring_bytes + stream.x_bytes


@keep
def plan(
    machine: Machine, *, is_fp4: bool, tokens: int, hidden: int, columns: int, rounds_x: bool = False
) -> Streamed:
    return plan_streamed(
        "decode_o",
        machine,
        is_fp4=is_fp4,
        columns=columns,
        tokens=tokens,
        stages=STAGES[is_fp4],
        shared=shared_bytes,
        strips=hidden // STRIP_ROWS,
        sizes={"HIDDEN": hidden, "WIDTH": columns, "ROUNDS_X": rounds_x},
        most_part_bytes=MOST_PART_BYTES,
        flight=FLIGHT,
        fewest_held=1,
    )


def _plan_for(machine: Machine, operands: DecodeOOperands) -> Streamed:
    hidden, columns = operands.weight.shape
    return plan(
        machine,
        is_fp4=isinstance(operands.weight, Mxfp4Weight),
        tokens=operands.r.shape[0],
        hidden=hidden,
        columns=columns,
        rounds_x=operands.activation == ROUNDED,
    )


@decode_o.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_o(operands: DecodeOOperands) -> Tensor:
    r = operands.r
    args = (operands.mixed, operands.bias, *weight_parts(operands.weight), r, r.shape[0])
    _plan_for(find_machine(r.device), operands).launch(args, operands.dependent)
    return r


decode_o.prefer("cuda")


@decode_o.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    def plan_big(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        sizes = {"hidden": GPT_OSS.hidden, "columns": GPT_OSS.heads * GPT_OSS.head_dim}
        return plan(machine, is_fp4=is_fp4, tokens=tokens, rounds_x=rounds_x, **sizes)

    yield from list_plans(capability, plan_big)


@decode_o.samples
def samples(device: torch.device) -> Iterator[Sample]:
    for label, tokens, sizes, draw in list_cases(device):
        columns = sizes.heads * sizes.head_dim
        for held, weight in draw.weights(sizes.hidden, columns):
            operands = DecodeOOperands(
                mixed=draw.normal(tokens, columns),
                weight=weight,
                bias=draw.normal(sizes.hidden, scale=0.1),
                r=draw.normal(tokens, sizes.hidden),
            )
            yield from rounded_too(label, held, operands)


@decode_o.workloads
@few_tokens
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec

    def draw(weight: Tensor | Mxfp4Weight) -> DecodeOOperands:
        return DecodeOOperands(
            mixed=shapes.normal(m, spec.q_size),
            weight=weight,
            bias=shapes.bias(spec.hidden_size),
            r=shapes.normal(m, spec.hidden_size),
            activation=activation,
        )

    yield from list_dense(shapes, m, activation, (spec.hidden_size, spec.q_size), draw)
