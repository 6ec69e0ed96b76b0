"""Device code of rope: a program turns some heads of one token; query heads and key heads in one launch."""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.launch import launch_kernel
from firesteel.kernels.triton.arithmetic import round_to, widen

HEADS_AT_ONCE = 16
NUM_WARPS = 2


@triton.jit
def rope_kernel(
    q, k, positions, table, turned_q, turned_k, q_token_stride, q_head_stride, k_token_stride, k_head_stride,
    Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """HALF is D/2 rounded up to a power of two. Results are contiguous."""
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    position = tl.load(positions + token)
    columns = tl.arange(0, HALF)
    inside = columns < D // 2
    cos = tl.load(table + position * D + columns, mask=inside, other=0.0)
    sin = tl.load(table + position * D + D // 2 + columns, mask=inside, other=0.0)
    q_tiles: tl.constexpr = (Q + HEADS - 1) // HEADS
    if tile < q_tiles:
        heads = tile * HEADS + tl.arange(0, HEADS)
        turn(q + token * q_token_stride, q_head_stride, turned_q + token * Q * D, heads, Q, columns, cos, sin, D)
    else:
        heads = (tile - q_tiles) * HEADS + tl.arange(0, HEADS)
        turn(k + token * k_token_stride, k_head_stride, turned_k + token * K * D, heads, K, columns, cos, sin, D)


@triton.jit
def turn(x, head_stride, y, heads, num_heads: tl.constexpr, columns, cos, sin, D: tl.constexpr):
    mask = (heads < num_heads)[:, None] & (columns < D // 2)[None, :]
    source = x + heads[:, None] * head_stride + columns[None, :]
    first = widen(tl.load(source, mask=mask, other=0.0))
    second = widen(tl.load(source + D // 2, mask=mask, other=0.0))
    cos, sin = cos[None, :], sin[None, :]
    target = y + heads[:, None] * D + columns[None, :]
    tl.store(target, round_to(first * cos - second * sin, y.dtype.element_ty), mask=mask)
    tl.store(target + D // 2, round_to(second * cos + first * sin, y.dtype.element_ty), mask=mask)


def launch(q: Tensor, k: Tensor, positions: Tensor, table: Tensor, turned_q: Tensor, turned_k: Tensor) -> None:
    tokens, q_heads, dim = q.shape
    k_heads = k.shape[1]
    tiles = triton.cdiv(q_heads, HEADS_AT_ONCE) + triton.cdiv(k_heads, HEADS_AT_ONCE)
    launch_kernel(
        rope_kernel, (tokens, tiles),
        q, k, positions, table, turned_q, turned_k, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        Q=q_heads, K=k_heads, D=dim, HEADS=HEADS_AT_ONCE, HALF=triton.next_power_of_2(dim // 2),
        num_warps=NUM_WARPS,
    )  # fmt: skip
