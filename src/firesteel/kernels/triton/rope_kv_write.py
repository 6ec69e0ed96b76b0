"""Device code of rope_kv_write: a program rotates some query heads of a token, or stores some of its kv heads."""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firesteel.formats.e4m3 import LARGEST
from firesteel.kernels.tiles.launch import divide_up, launch_kernel, power_of_two
from firesteel.kernels.triton.arithmetic import round_to, widen
from firesteel.kernels.triton.e4m3 import to_e4m3

E4M3_LARGEST = tl.constexpr(LARGEST)
HEADS_AT_ONCE = 16
NUM_WARPS = 2


@triton.jit
def rope_kv_write_kernel(
    q,
    k,
    v,
    positions,
    table,
    turned_q,
    k_pages,
    v_pages,
    slots,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    key_scale,
    value_scale,
    clipped,
    Q: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Rotates and stores. HALF is D/2 rounded up to a power of 2; `turned_q` and pages are contiguous.

    uint8 pages hold E4M3. Only they have scales and a count of clipped values; masked values are 0, never clipped.
    If a slot is negative, all values are masked.
    """
    SCALED: tl.constexpr = k_pages.dtype.element_ty == tl.uint8
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    columns = tl.arange(0, HALF)
    inside = (columns < D // 2)[None, :]
    cos = tl.load(table + position * D + columns[None, :], mask=inside, other=0.0)
    sin = tl.load(table + position * D + D // 2 + columns[None, :], mask=inside, other=0.0)
    Q_TILES: tl.constexpr = (Q + HEADS - 1) // HEADS
    tile = tl.program_id(1)
    if tile < Q_TILES:
        heads = (tile * HEADS + tl.arange(0, HEADS))[:, None]
        mask = (heads < Q) & inside
        first, second = load_halves(q + token * q_token_stride + heads * q_head_stride + columns, mask, D)
        first, second = turn(first, second, cos, sin)
        store_halves(turned_q + (token * Q + heads) * D + columns, first, second, mask, D)
    else:
        heads = ((tile - Q_TILES) * HEADS + tl.arange(0, HEADS))[:, None]
        slot = tl.load(slots + token)
        mask = (heads < tl.where(slot >= 0, K, 0)) & inside
        target = (((slot // S) * K + heads) * S + slot % S) * D + columns
        first, second = load_halves(k + token * k_token_stride + heads * k_head_stride + columns, mask, D)
        first, second = turn(first, second, cos, sin)
        if SCALED:
            first, second = tl.div_rn(first, key_scale), tl.div_rn(second, key_scale)
        store_halves(k_pages + target, first, second, mask, D)
        beyond = count_beyond(first, second)
        first, second = load_halves(v + token * v_token_stride + heads * v_head_stride + columns, mask, D)
        if SCALED:
            first, second = tl.div_rn(first, value_scale), tl.div_rn(second, value_scale)
        store_halves(v_pages + target, first, second, mask, D)
        if clipped is not None:
            count = tl.sum(beyond + count_beyond(first, second))
            tl.atomic_add(clipped, count.to(tl.int64), mask=count > 0, sem="relaxed")


@triton.jit
def turn(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def count_beyond(first, second):
    """Counts, for each pair, the values outside the range of E4M3; NaN is not counted."""
    return (tl.abs(first) > E4M3_LARGEST).to(tl.int32) + (tl.abs(second) > E4M3_LARGEST).to(tl.int32)


@triton.jit
def load_halves(at, mask, D: tl.constexpr):
    return widen(tl.load(at, mask=mask, other=0.0)), widen(tl.load(at + D // 2, mask=mask, other=0.0))


@triton.jit
def store_halves(at, first, second, mask, D: tl.constexpr):
    if at.dtype.element_ty == tl.uint8:
        tl.store(at, to_e4m3(first), mask=mask)
        tl.store(at + D // 2, to_e4m3(second), mask=mask)
    else:
        tl.store(at, round_to(first, at.dtype.element_ty), mask=mask)
        tl.store(at + D // 2, round_to(second, at.dtype.element_ty), mask=mask)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    table: Tensor,
    turned_q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    slots: Tensor,
    key_scale: float,
    value_scale: float,
    clipped: Tensor | None,
) -> None:
    """Launches without fused multiply-add and with correctly rounded division, to match the reference's bits."""
    tokens, q_heads, dim = q.shape
    k_heads = k.shape[1]
    tiles = divide_up(q_heads, HEADS_AT_ONCE) + divide_up(k_heads, HEADS_AT_ONCE)
    strides = [one.stride(axis) for one in (q, k, v) for axis in (0, 1)]
    launch_kernel(
        rope_kv_write_kernel,
        (tokens, tiles),
        q,
        k,
        v,
        positions,
        table,
        turned_q,
        k_pages,
        v_pages,
        slots,
        *strides,
        key_scale,
        value_scale,
        clipped,
        Q=q_heads,
        K=k_heads,
        D=dim,
        S=k_pages.shape[2],
        HEADS=HEADS_AT_ONCE,
        HALF=power_of_two(dim // 2),
        num_warps=NUM_WARPS,
        enable_fp_fusion=False,
    )
