"""Turns queries and keys by their positions, halves rotated (NeoX), and puts keys and values into their pages.

in   q                 [T, Q, D]
     k, v              [T, K, D]
     positions         [T] int64
     table             [C, D] fp32    of rope_table
     k_pages, v_pages  [P, K, S, D]   written: bf16, fp16, fp32, or fp8 E4M3, saturating at 448
     slots             [T] int64      page * S + offset; every slot at most once. Negative: nothing is stored
     key_scale         of fp8 pages: a key is divided by it before it is rounded; 1.0 in wider pages
     value_scale       the same for values
     clipped           [1] int64 or None: of fp8 pages, grows by the number of values beyond 448 once divided
out  q                 [T, Q, D]      turned, those of tokens that are not stored too
     k_pages, v_pages                 the same tensors
     clipped                          the same tensor, where given
Computed in fp32, each result rounded once, to its own type. NaN stays NaN and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from firesteel.device import find_capability
from firesteel.formats import e4m3
from firesteel.kernels.ledger import note_clipped
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import DeviceCode, Sample, define_op
from firesteel.kernels.op.profile import ATTENTION, OpProfile
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.operands.shapes import PAGE_SIZE, ModelShapes, WorkloadPart
from firesteel.kernels.rope import RopeSpec, rope_table

FP8 = torch.float8_e4m3fn
PAGE_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", FP8: "*u8"}


def _bytes(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor, k_pages: Tensor, v_pages: Tensor,
    slots: Tensor, key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None,
) -> int:  # fmt: skip
    of_tokens = positions.nbytes + slots.nbytes + positions.numel() * table[0].nbytes
    return 2 * q.nbytes + k.nbytes + v.nbytes + of_tokens + 2 * k.numel() * k_pages.element_size()


def _refuse_scales(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor, k_pages: Tensor, v_pages: Tensor,
    slots: Tensor, key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None,
) -> str | None:  # fmt: skip
    return refuse_scales(k_pages, key_scale, value_scale, clipped)


def refuse_scales(pages: Tensor, key_scale: float, value_scale: float, clipped: Tensor | None = None) -> str | None:
    is_plain = key_scale == 1.0 and value_scale == 1.0 and clipped is None
    return None if is_plain or pages.dtype == FP8 else f"has scales for fp8 e4m3 pages, not {pages.dtype}"


@define_op(
    bytes=_bytes,
    tolerance=exact(why="the products and sums of two values, a quotient, each rounded as written"),
    accepts=_refuse_scales,
    keeps_choice=True,
    profile=OpProfile(ATTENTION, reads="rope_kv_write", kernels={"rope_kv_write_kernel": "rope_kv_write"}),
)
def rope_kv_write(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor, k_pages: Tensor, v_pages: Tensor,
    slots: Tensor, key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    turned = turn_and_write(q, k, v, positions, table, k_pages, v_pages, slots, key_scale, value_scale, clipped)
    return _results(turned, k_pages, v_pages, clipped)


def turn_and_write(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor, k_pages: Tensor, v_pages: Tensor,
    slots: Tensor, key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Queries, turned; for ops that are not the ones to tell the ledger what was clipped."""
    cos, sin = table[positions].unsqueeze(1).chunk(2, dim=-1)
    keys, values = _divide(_turn(k, cos, sin), key_scale), _divide(v.float(), value_scale)
    is_stored = slots >= 0
    slots, keys, values = slots[is_stored], keys[is_stored], values[is_stored]
    _write(k_pages, slots, keys)
    _write(v_pages, slots, values)
    if clipped is not None:
        clipped += (keys.abs() > e4m3.LARGEST).sum() + (values.abs() > e4m3.LARGEST).sum()
    return _turn(q, cos, sin).to(q.dtype)


def _results(q: Tensor, k_pages: Tensor, v_pages: Tensor, clipped: Tensor | None) -> tuple[Tensor, ...]:
    """Notes the counter in the ledger, where there is one."""
    if clipped is None:
        return q, k_pages, v_pages
    note_clipped(clipped)
    return q, k_pages, v_pages, clipped


def _divide(x: Tensor, scale: float) -> Tensor:
    """By a tensor: on a GPU torch multiplies by the reciprocal of a number, which rounds otherwise."""
    return x / torch.full((), scale, device=x.device)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _write(pages: Tensor, slots: Tensor, x: Tensor) -> None:
    """torch's own cast to fp8 makes NaN of what is too large."""
    numbers, offsets = slots // pages.shape[2], slots % pages.shape[2]
    if pages.dtype == FP8:
        pages.view(torch.uint8)[numbers, :, offsets] = e4m3.encode(x)
    else:
        pages[numbers, :, offsets] = x.to(pages.dtype)


def _accepts(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor, k_pages: Tensor, v_pages: Tensor,
    slots: Tensor, key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None,
) -> str | None:  # fmt: skip
    if k_pages.dtype not in PAGE_TYPES or k_pages.dtype != v_pages.dtype:
        return f"writes bf16, fp16, fp32 or fp8 e4m3 pages, not {k_pages.dtype} and {v_pages.dtype}"
    capability = find_capability(k_pages.device)
    if k_pages.dtype == FP8 and capability is not None and capability < (8, 9):
        return "writes fp8 pages from compute capability 8.9 on, where attention reads them"
    if any(one.stride(-1) != 1 for one in (q, k, v)):
        return "wants heads whose values lie side by side"
    if not all(one.is_contiguous() for one in (positions, table, k_pages, v_pages, slots)):
        return "wants contiguous positions, table, pages and slots"
    return _refuse_scales(q, k, v, positions, table, k_pages, v_pages, slots, key_scale, value_scale, clipped)


@rope_kv_write.implementation("triton", needs=triton_ready(), accepts=_accepts)
def triton_rope_kv_write(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, table: Tensor, k_pages: Tensor, v_pages: Tensor,
    slots: Tensor, key_scale: float = 1.0, value_scale: float = 1.0, clipped: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    from firesteel.kernels.triton.rope_kv_write import launch

    turned = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    bits = (_bits(k_pages), _bits(v_pages))
    launch(q, k, v, positions, table, turned, *bits, slots, key_scale, value_scale, clipped)
    return _results(turned, k_pages, v_pages, clipped)


def _bits(pages: Tensor) -> Tensor:
    return pages.view(torch.uint8) if pages.dtype == FP8 else pages


rope_kv_write.prefer("triton")


@rope_kv_write.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    from firesteel.kernels.triton.rope_kv_write import HEADS_AT_ONCE, NUM_WARPS, rope_kv_write_kernel

    signature = dict.fromkeys(("q", "k", "v", "turned_q"), "*bf16") | {"positions": "*i64", "slots": "*i64"}
    signature |= {f"{name}_{of}_stride": "i32:16" for name in "qkv" for of in ("token", "head")}
    signature |= {"table": "*fp32", "key_scale": "fp32", "value_scale": "fp32"}
    constants = {"Q": 64, "K": 8, "D": 64, "S": 64, "HEADS": HEADS_AT_ONCE, "HALF": 32}
    for name, dtype in (("triton", torch.bfloat16), ("triton fp8-pages", FP8)):
        if dtype != FP8 or capability >= (8, 9):
            pages = dict.fromkeys(("k_pages", "v_pages"), PAGE_TYPES[dtype])
            counter: dict[str, str] = {"clipped": "*i64"} if dtype == FP8 else {}
            absent = {} if dtype == FP8 else {"clipped": None}
            yield DeviceCode(
                variant=name, kernel=rope_kv_write_kernel, signature={**signature, **pages, **counter},
                constants={**constants, **absent}, num_warps=NUM_WARPS, enable_fp_fusion=False,
            )  # fmt: skip


@rope_kv_write.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    table = rope_table(RopeSpec(theta=150000.0, factor=32.0), 64, 131072, device)
    for tokens, page_size, dtype, scales in (
        (1, 64, torch.bfloat16, ()), (65, 16, torch.bfloat16, ()), (300, 64, torch.bfloat16, ()), (65, 64, FP8, ()),
        (65, 64, FP8, (0.25, 0.125)), (33, 16, FP8, (0.003, 0.0057)), (20, 16, FP8, (0.003, 0.0057)),
    ):  # fmt: skip
        qkv = torch.randn(tokens, 80, 64, device=device, generator=generator).bfloat16()
        q, k, v = qkv.split([64, 8, 8], dim=1)
        positions = torch.randint(131072, (tokens,), device=device, generator=generator)
        k_pages, v_pages = torch.zeros(2, 512 // page_size, 8, page_size, 64, device=device).to(dtype)
        slots = torch.randperm(512, device=device, generator=generator)[:tokens]
        label = f"T={tokens} S={page_size} {dtype}"
        if tokens == 20:
            slots[-3:] = -1
            label += " 3 not stored"
        args: tuple[Any, ...] = (q, k, v, positions, table, k_pages, v_pages, slots)
        if scales:
            label += f" scales {scales[0]:g} and {scales[1]:g}"
            args = (*args, *scales, torch.full((1,), 1 << 40, device=device))
        yield Sample(label, args)


@rope_kv_write.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Yields one token of each of M requests: positions and slots are anywhere."""
    spec = shapes.spec
    heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
    pages = -(-m // PAGE_SIZE) + 1

    def draw() -> tuple[Any, ...]:
        q, k, v = shapes.normal(m, sum(heads), spec.head_dim).split(heads, dim=1)
        k_pages, v_pages = (shapes.normal(pages, spec.num_kv_heads, PAGE_SIZE, spec.head_dim) for _ in range(2))
        positions, slots = shapes.integers(spec.max_context, m), shapes.permutation(pages * PAGE_SIZE)[:m]
        return q, k, v, positions, shapes.rope_table, k_pages, v_pages, slots

    yield WorkloadPart("", 0.0, 4 * pages * PAGE_SIZE * (spec.q_size + 2 * spec.kv_size), draw)
