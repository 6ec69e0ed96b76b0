"""A layer's first decode kernel: norm, qkv, rope and KV write for one to eight tokens, one per request.

in   DecodeQkvOperands
out  q                 [T, Q, D] bf16  rotated
     k_pages, v_pages                  the same tensors
     clipped                           the same tensor, if given
The norm, the sums with the bias, and what is rotated are each rounded to bf16. `cuda` converts what meets MXFP4
weights to 14-bit integers that share a scale per 64 to 256 columns, and multiplies them exactly; it multiplies keys
and values for fp8 pages by the reciprocal of their scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from firesteel.kernels.decode.qkv_operands import HEAD_DIM, DecodeQkvOperands, list_samples, list_workloads
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.profile import DENSE, OpProfile
from firesteel.kernels.op.tolerance import Tolerance, bf16, exact
from firesteel.kernels.operands.weights import Mxfp4Weight, weight_parts
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.ops.rms_norm import RmsNormOperands, rms_norm
from firesteel.kernels.ops.rope_kv_write import (
    FP8,
    RopeKvWriteOperands,
    refuse_scales,
    rope_kv_write,
    rotate_and_write,
)
from firesteel.kernels.stream.build import keep
from firesteel.kernels.stream.plan import ROUNDED, Machine, Streamed, find_machine, list_plans, plan_streamed
from firesteel.kernels.stream.refuse import (
    refuse_here,
    refuse_layout,
    refuse_pages,
    refuse_rounding,
    refuse_strides,
    refuse_tokens,
    refuse_types,
)
from firesteel.kernels.stream.ring import SET_TOKENS, STRIP_ROWS, Stream, refuse_weight
from firesteel.kernels.stream.shapes import GPT_OSS

STAGES = {False: 6, True: 5}  # by whether weights are packed
FLIGHT = 3


def _bytes(operands: DecodeQkvOperands) -> int:
    r, weight, k_pages, positions = operands.r, operands.weight, operands.k_pages, operands.positions
    per_token = positions.nbytes + operands.slots.nbytes + len(positions) * operands.table[0].nbytes
    stored = r.shape[0] * 2 * k_pages.shape[1] * k_pages.shape[3]
    rotated = (r.shape[0] * weight.shape[0] - stored) * r.element_size()
    written = rotated + stored * k_pages.element_size()
    return r.nbytes + operands.norm.nbytes + weight.nbytes + operands.bias.nbytes + per_token + written


OWN_TOLERANCES = {
    FP8: Tolerance(
        worst=2.0**-3,
        rms=2.0**-5,
        why="where a key or value is a unit in the last place of bf16 apart, which is rare, its code may be too",
    ),
    torch.int64: exact(why="what is clipped is far beyond the border"),
}


def _tolerance_of(result: object) -> Tolerance | None:
    return OWN_TOLERANCES.get(result.dtype) if isinstance(result, Tensor) else None


def _refuse_scales(operands: DecodeQkvOperands) -> str | None:
    return refuse_scales(operands.k_pages, operands.key_scale, operands.value_scale, operands.clipped)


@define_op(
    bytes=_bytes,
    accepts=_refuse_scales,
    tolerance=bf16(ulps=2, why="three roundings in a row; fp32 sums in free order", own=_tolerance_of),
    keeps_choice=True,
    profile=OpProfile(DENSE, reads="linear.qkv"),
    replaces=(rms_norm, linear, rope_kv_write),
)
def decode_qkv(operands: DecodeQkvOperands) -> tuple[Tensor, ...]:
    k_pages = operands.k_pages
    x, _ = rms_norm.reference(RmsNormOperands(residual=operands.r, weight=operands.norm, eps=operands.eps))
    kv_heads, dim = k_pages.shape[1], k_pages.shape[3]
    product = LinearOperands(x=x, weight=operands.weight, bias=operands.bias, activation=operands.activation)
    heads = linear.reference(product).unflatten(-1, (-1, dim))
    q, k, v = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    rotated = rotate_and_write(
        RopeKvWriteOperands(
            q=q,
            k=k,
            v=v,
            positions=operands.positions,
            table=operands.table,
            k_pages=k_pages,
            v_pages=operands.v_pages,
            slots=operands.slots,
            key_scale=operands.key_scale,
            value_scale=operands.value_scale,
            clipped=operands.clipped,
        )
    )
    return operands.results(rotated)


def _accepts(operands: DecodeQkvOperands) -> str | None:
    r, norm, weight, bias, table = operands.r, operands.norm, operands.weight, operands.bias, operands.table
    positions, slots, k_pages, v_pages = operands.positions, operands.slots, operands.k_pages, operands.v_pages
    values, scales = weight_parts(weight)
    if k_pages.shape[3] != HEAD_DIM:
        return f"turns heads of {HEAD_DIM}, not {k_pages.shape[3]}"
    return (
        refuse_tokens(r)
        or refuse_types(r, norm, bias, values if scales is None else None)
        or refuse_pages(k_pages, v_pages)
        or _refuse_scales(operands)
        or refuse_types(table, wanted=torch.float32)
        or refuse_types(positions, slots, operands.clipped, wanted=torch.int64)
        or refuse_layout(r, norm, values, scales)
        or refuse_strides(bias, table, positions, slots, k_pages, v_pages)
        or refuse_weight(weight)
        or refuse_rounding(weight, operands.activation)
        or refuse_here(r, lambda machine: _plan_for(machine, operands))
    )


def shared_bytes(stream: Stream) -> int:
    return stream.ring_bytes + stream.x_bytes + stream.scratch_bytes


@keep
def plan(
    machine: Machine,
    *,
    is_fp4: bool,
    tokens: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    rounds_x: bool = False,
    has_fp8_pages: bool = False,
) -> Streamed:
    sizes = {
        "HIDDEN": hidden,
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "HEAD_DIM": HEAD_DIM,
        "ROUNDS_X": rounds_x,
        "FP8_PAGES": has_fp8_pages,
    }
    return plan_streamed(
        "decode_qkv",
        machine,
        is_fp4=is_fp4,
        columns=hidden,
        tokens=tokens,
        stages=STAGES[is_fp4],
        shared=shared_bytes,
        strips=(heads + 2 * kv_heads) * HEAD_DIM // STRIP_ROWS,
        sizes=sizes,
        flight=FLIGHT,
        fewest_held=SET_TOKENS,
    )


def _plan_for(machine: Machine, operands: DecodeQkvOperands) -> Streamed:
    return plan(
        machine,
        is_fp4=isinstance(operands.weight, Mxfp4Weight),
        tokens=operands.r.shape[0],
        hidden=operands.r.shape[1],
        heads=operands.heads,
        kv_heads=operands.k_pages.shape[1],
        rounds_x=operands.activation == ROUNDED,
        has_fp8_pages=operands.has_fp8_pages,
    )


@decode_qkv.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_qkv(operands: DecodeQkvOperands) -> tuple[Tensor, ...]:
    r, k_pages = operands.r, operands.k_pages
    q = torch.empty(r.shape[0], operands.heads, HEAD_DIM, dtype=r.dtype, device=r.device)
    inverse_scales = (1 / operands.key_scale, 1 / operands.value_scale, operands.clipped)
    args = (
        r,
        operands.norm,
        operands.bias,
        *weight_parts(operands.weight),
        q,
        k_pages,
        operands.v_pages,
        operands.table,
        operands.positions,
        operands.slots,
        operands.eps,
        r.shape[0],
        k_pages.shape[2],
        *(inverse_scales if operands.has_fp8_pages else ()),
    )
    _plan_for(find_machine(r.device), operands).launch(args, operands.dependent)
    return operands.results(q)


decode_qkv.prefer("cuda")
decode_qkv.samples(list_samples)
decode_qkv.workloads(list_workloads)


@decode_qkv.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    sizes = {"hidden": GPT_OSS.hidden, "heads": GPT_OSS.heads, "kv_heads": GPT_OSS.kv_heads}

    def plan_pages(has_fp8_pages: bool) -> Callable[[Machine, bool, int, bool], Streamed]:
        return lambda machine, is_fp4, tokens, rounds_x: plan(
            machine, is_fp4=is_fp4, tokens=tokens, rounds_x=rounds_x, has_fp8_pages=has_fp8_pages, **sizes
        )

    yield from list_plans(capability, plan_pages(False))
    yield from list_plans(capability, plan_pages(True), way="cuda fp8-pages")
