"""The heads' outputs through o, added to the residual, for one to eight tokens.

in   mixed      [T, Q D] bf16    of decode_attention
     weight     [H, Q D] bf16 or MXFP4 (Mxfp4Weight)
     bias       [H] bf16
     r          [T, H] bf16      residual, added to
     activation bf16, or mxfp8: what `mixed` is rounded to before it meets an MXFP4 weight
     dependent  may begin before what is ahead of it ends: nothing but the weight is read before its wait
out  r          the same tensor  r + (mixed @ weight.T + bias)
The sum with bias and the residual are each rounded to bf16. `cuda` cuts what meets MXFP4 weights to whole numbers
of 14 bits, 64 to 256 columns together, and multiplies them exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.stream.launch import (
    ROUNDED,
    Machine,
    Streamed,
    find_machine,
    keep,
    list_plans,
    plan_streamed,
    refuse_here,
    refuse_layout,
    refuse_rounding,
    refuse_strides,
    refuse_tokens,
    refuse_types,
    weight_parts,
)
from firesteel.kernels.stream.ring import STRIP_ROWS, Stream, refuse_weight
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases, rounded_too

STAGES = {False: 6, True: 4}  # by whether weights are packed
FLIGHT = 2
MOST_PART_BYTES = 2048


def _bytes(
    mixed: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor, r: Tensor,
    activation: str = "bf16", dependent: bool = False,
) -> int:  # fmt: skip
    return mixed.nbytes + weight.nbytes + bias.nbytes + 2 * r.nbytes


@define_op(
    bytes=_bytes, tolerance=bf16(ulps=1, why="two roundings, the larger of the residual; sums in free order")
)
def decode_o(
    mixed: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor, r: Tensor,
    activation: str = "bf16", dependent: bool = False,
) -> Tensor:  # fmt: skip
    return r.copy_(r.float() + linear.reference(mixed, weight, bias, activation).float())


def _accepts(
    mixed: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor, r: Tensor,
    activation: str = "bf16", dependent: bool = False,
) -> str | None:  # fmt: skip
    values, scales = weight_parts(weight)
    return (
        refuse_tokens(r)
        or refuse_types(mixed, bias, r, values if scales is None else None)
        or refuse_layout(mixed, r, values, scales)
        or refuse_strides(bias)
        or refuse_weight(weight)
        or refuse_rounding(weight, activation)
        or refuse_here(r, lambda machine: _plan_for(machine, weight, r, activation))
    )


def shared_bytes(stream: Stream) -> int:
    return stream.ring_bytes + stream.x_bytes


@keep
def plan(
    machine: Machine, *, is_fp4: bool, tokens: int, hidden: int, columns: int, rounds_x: bool = False
) -> Streamed:
    return plan_streamed(
        "decode_o", machine, is_fp4=is_fp4, columns=columns, tokens=tokens, stages=STAGES[is_fp4],
        shared=shared_bytes, strips=hidden // STRIP_ROWS,
        sizes={"HIDDEN": hidden, "WIDTH": columns, "ROUNDS_X": rounds_x}, most_part_bytes=MOST_PART_BYTES,
        flight=FLIGHT,
    )  # fmt: skip


def _plan_for(machine: Machine, weight: Tensor | Mxfp4Weight, r: Tensor, activation: str) -> Streamed:
    is_fp4, (hidden, columns) = isinstance(weight, Mxfp4Weight), weight.shape
    return plan(
        machine, is_fp4=is_fp4, tokens=r.shape[0], hidden=hidden, columns=columns, rounds_x=activation == ROUNDED
    )


@decode_o.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_o(
    mixed: Tensor, weight: Tensor | Mxfp4Weight, bias: Tensor, r: Tensor,
    activation: str = "bf16", dependent: bool = False,
) -> Tensor:  # fmt: skip
    args = (mixed, bias, *weight_parts(weight), r, r.shape[0])
    _plan_for(find_machine(r.device), weight, r, activation).launch(args, dependent)
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
            bias = draw.normal(sizes.hidden, scale=0.1)
            args = (draw.normal(tokens, columns), weight, bias, draw.normal(tokens, sizes.hidden))
            yield from rounded_too(label, held, args)
