"""A layer's first decode kernel: norm, qkv, rope and KV write for one to eight tokens, one of each request.

in   r                 [T, H] bf16     residual
     norm              [H] bf16, eps
     weight            [(Q + 2K) D, H] bf16 or MXFP4 (Mxfp4Weight); rows of queries, then keys, then values
     bias              [(Q + 2K) D] bf16
     table             [C, D] fp32     of rope_table
     positions         [T] int64
     slots             [T] int64       page * S + offset; every slot at most once
     k_pages, v_pages  [P, K, S, D]    written: bf16, or fp8 E4M3, saturating at 448
     activation        bf16, or mxfp8: what the norm is rounded to before it meets an MXFP4 weight
     key_scale         of fp8 pages: a key is divided by it before it is rounded; 1.0 in wider pages
     value_scale       the same for values
     clipped           [1] int64 or None: of fp8 pages, grows by the number of values beyond 448 once divided; the
                       ledger has it with rope_kv_write, which writes a prompt's
     dependent         may begin before what is ahead of it ends: only weights and norm are read before its wait
out  q                 [T, Q, D] bf16  turned
     k_pages, v_pages                  the same tensors
     clipped                           the same tensor, where given
The norm, the sums with bias, and what is turned are each rounded to bf16. `cuda` cuts what meets MXFP4 weights to
whole numbers of 14 bits, 64 to 256 columns together, and multiplies them exactly; keys and values for fp8 pages it
multiplies by the reciprocal of their scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.tolerance import Tolerance, bf16, exact
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.rope_kv_write import FP8, refuse_scales, turn_and_write
from firesteel.kernels.rope import RopeSpec, rope_table
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
    refuse_pages,
    refuse_rounding,
    refuse_strides,
    refuse_tokens,
    refuse_types,
    weight_parts,
)
from firesteel.kernels.stream.ring import MOST_PART_BYTES, STRIP_ROWS, Stream, refuse_weight
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases, rounded_too

STAGES = {False: 6, True: 5}  # by whether weights are packed
FLIGHT = 3
HEAD_DIM = 64


def _bytes(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight, bias: Tensor, table: Tensor,
    positions: Tensor, slots: Tensor, k_pages: Tensor, v_pages: Tensor, activation: str = "bf16",
    key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None, dependent: bool = False,
) -> int:  # fmt: skip
    of_tokens = positions.nbytes + slots.nbytes + len(positions) * table[0].nbytes
    stored = r.shape[0] * 2 * k_pages.shape[1] * k_pages.shape[3]
    turned = (r.shape[0] * weight.shape[0] - stored) * r.element_size()
    written = turned + stored * k_pages.element_size()
    return r.nbytes + norm.nbytes + weight.nbytes + bias.nbytes + of_tokens + written


OWN_TOLERANCES = {
    FP8: Tolerance(
        worst=2.0**-3, rms=2.0**-5,
        why="where a key or value is a unit in the last place of bf16 apart, which is rare, its code may be too",
    ),
    torch.int64: exact(why="what is clipped is far beyond the border"),
}  # fmt: skip


def _tolerance_of(result: object) -> Tolerance | None:
    return OWN_TOLERANCES.get(result.dtype) if isinstance(result, Tensor) else None


def _refuse_scales(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight, bias: Tensor, table: Tensor,
    positions: Tensor, slots: Tensor, k_pages: Tensor, v_pages: Tensor, activation: str = "bf16",
    key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None, dependent: bool = False,
) -> str | None:  # fmt: skip
    return refuse_scales(k_pages, key_scale, value_scale, clipped)


@define_op(
    bytes=_bytes, accepts=_refuse_scales,
    tolerance=bf16(ulps=2, why="three roundings in a row; fp32 sums in free order", own=_tolerance_of),
)  # fmt: skip
def decode_qkv(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight, bias: Tensor, table: Tensor,
    positions: Tensor, slots: Tensor, k_pages: Tensor, v_pages: Tensor, activation: str = "bf16",
    key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None, dependent: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    x, _ = rms_norm.reference(r, None, norm, eps)
    kv_heads, dim = k_pages.shape[1], k_pages.shape[3]
    heads = linear.reference(x, weight, bias, activation).unflatten(-1, (-1, dim))
    q, k, v = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    scales = (key_scale, value_scale, clipped)
    turned = turn_and_write(q, k, v, positions, table, k_pages, v_pages, slots, *scales)
    return _results(turned, k_pages, v_pages, clipped)


def _results(q: Tensor, k_pages: Tensor, v_pages: Tensor, clipped: Tensor | None) -> tuple[Tensor, ...]:
    return (q, k_pages, v_pages) if clipped is None else (q, k_pages, v_pages, clipped)


def _accepts(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight, bias: Tensor, table: Tensor,
    positions: Tensor, slots: Tensor, k_pages: Tensor, v_pages: Tensor, activation: str = "bf16",
    key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None, dependent: bool = False,
) -> str | None:  # fmt: skip
    values, scales = weight_parts(weight)
    if k_pages.shape[3] != HEAD_DIM:
        return f"turns heads of {HEAD_DIM}, not {k_pages.shape[3]}"
    return (
        refuse_tokens(r)
        or refuse_types(r, norm, bias, values if scales is None else None)
        or refuse_pages(k_pages, v_pages)
        or refuse_scales(k_pages, key_scale, value_scale, clipped)
        or refuse_types(table, wanted=torch.float32)
        or refuse_types(positions, slots, clipped, wanted=torch.int64)
        or refuse_layout(r, norm, values, scales)
        or refuse_strides(bias, table, positions, slots, k_pages, v_pages)
        or refuse_weight(weight)
        or refuse_rounding(weight, activation)
        or refuse_here(r, lambda machine: _plan_for(machine, r, weight, k_pages, activation))
    )


def shared_bytes(stream: Stream) -> int:
    return stream.ring_bytes + stream.x_bytes + stream.scratch_bytes


@keep
def plan(
    machine: Machine, *, is_fp4: bool, tokens: int, hidden: int, heads: int, kv_heads: int, rounds_x: bool = False,
    has_fp8_pages: bool = False,
) -> Streamed:  # fmt: skip
    sizes = {
        "HIDDEN": hidden, "HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": HEAD_DIM, "ROUNDS_X": rounds_x,
        "FP8_PAGES": has_fp8_pages,
    }  # fmt: skip
    return plan_streamed(
        "decode_qkv", machine, is_fp4=is_fp4, columns=hidden, tokens=tokens, stages=STAGES[is_fp4],
        shared=shared_bytes, strips=(heads + 2 * kv_heads) * HEAD_DIM // STRIP_ROWS, sizes=sizes,
        flight=FLIGHT, most_part_bytes=MOST_PART_BYTES,
    )  # fmt: skip


def _plan_for(
    machine: Machine, r: Tensor, weight: Tensor | Mxfp4Weight, k_pages: Tensor, activation: str
) -> Streamed:
    heads, kv_heads = weight.shape[0] // HEAD_DIM, k_pages.shape[1]
    return plan(
        machine, is_fp4=isinstance(weight, Mxfp4Weight), tokens=r.shape[0], hidden=r.shape[1],
        heads=heads - 2 * kv_heads, kv_heads=kv_heads, rounds_x=activation == ROUNDED,
        has_fp8_pages=k_pages.dtype == FP8,
    )  # fmt: skip


@decode_qkv.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_qkv(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight, bias: Tensor, table: Tensor,
    positions: Tensor, slots: Tensor, k_pages: Tensor, v_pages: Tensor, activation: str = "bf16",
    key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None, dependent: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    kv_heads, page_size = k_pages.shape[1:3]
    heads = weight.shape[0] // HEAD_DIM - 2 * kv_heads
    q = torch.empty(r.shape[0], heads, HEAD_DIM, dtype=r.dtype, device=r.device)
    args = (
        r, norm, bias, *weight_parts(weight), q, k_pages, v_pages, table, positions, slots, eps, r.shape[0],
        page_size, *((1 / key_scale, 1 / value_scale, clipped) if k_pages.dtype == FP8 else ()),
    )  # fmt: skip
    _plan_for(find_machine(r.device), r, weight, k_pages, activation).launch(args, dependent)
    return _results(q, k_pages, v_pages, clipped)


decode_qkv.prefer("cuda")


@decode_qkv.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    big = GPT_OSS
    sizes: dict[str, Any] = {"hidden": big.hidden, "heads": big.heads, "kv_heads": big.kv_heads}

    def plan_pages(has_fp8_pages: bool) -> Callable[[Machine, bool, int, bool], Streamed]:
        return lambda machine, is_fp4, tokens, rounds_x: plan(
            machine, is_fp4=is_fp4, tokens=tokens, rounds_x=rounds_x, has_fp8_pages=has_fp8_pages, **sizes
        )

    yield from list_plans(capability, plan_pages(False))
    yield from list_plans(capability, plan_pages(True), way="cuda fp8-pages")


@decode_qkv.samples
def samples(device: torch.device) -> Iterator[Sample]:
    for label, tokens, sizes, draw in list_cases(device):
        table = rope_table(RopeSpec(theta=150000.0, factor=32.0), sizes.head_dim, 4096, device)
        rows = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
        for held, weight in draw.weights(rows, sizes.hidden):
            pages = [draw.normal(5, sizes.kv_heads, 16, sizes.head_dim) for _ in range(2)]
            args = (
                draw.normal(tokens, sizes.hidden), draw.normal(sizes.hidden), 1e-5, weight,
                draw.normal(rows, scale=0.1), table, draw.permutation(4096)[:tokens].clone(),
                draw.permutation(80)[:tokens].clone(),
            )  # fmt: skip
            yield from rounded_too(label, held, (*args, *pages))
            yield _fp8_sample(f"{label} {held}, fp8 pages", args, pages, sizes.kv_heads)


def _fp8_sample(label: str, args: tuple[Any, ...], pages: list[Tensor], kv_heads: int) -> Sample:
    """Plain of one token, else with scales under which some values are far too large, and no others and no keys."""
    stored = [one.to(FP8) for one in pages]
    r, norm, eps, weight, bias, *rest = args
    if r.shape[0] == 1:
        return Sample(label, (*args, *stored))
    clipping = bias.clone()
    clipping[-HEAD_DIM * kv_heads :: 7] = 100.0
    activation = "mxfp8" if isinstance(weight, Mxfp4Weight) and r.shape[0] == 3 else "bf16"
    counted = torch.full((1,), 5, device=r.device)
    scaled = (r, norm, eps, weight, clipping, *rest, *stored, activation, 0.023, 0.037, counted)
    return Sample(f"{label} with scales", scaled)
