"""Launches attention of prompts beside decoding requests."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from firesteel.device import count_sms
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.attention_tiles import Shapes
from firesteel.kernels.ops.mixed.cut import SPLIT_QUERIES, MixedTiles, cut_mixed
from firesteel.kernels.tiles.launch import launch_kernel

MERGE_WARPS = 8
MOST_CUTS = 1024  # kept in memory: every length of a prompt has its own


@functools.lru_cache(MOST_CUTS)
def _cut(shapes: Shapes) -> MixedTiles:
    return cut_mixed(shapes)


def find_shapes(operands: AttentionOperands) -> Shapes:
    q, k_pages, page_table = operands.q, operands.k_pages, operands.page_table
    return Shapes(
        num_queries=q.shape[0],
        num_requests=page_table.shape[0],
        heads=q.shape[1],
        kv_heads=k_pages.shape[1],
        dim=q.shape[2],
        element_bytes=q.element_size(),
        longest=page_table.shape[1] * k_pages.shape[2],
        window=operands.window,
        num_sms=count_sms(q.device),
    )


def attend_mixed(operands: AttentionOperands, cut: MixedTiles | None = None) -> Tensor:
    """Launches a kernel without a window, and one that merges if any request may be split."""
    from firesteel.kernels.triton import attention_mixed as device

    q, k_pages, page_table = operands.q, operands.k_pages, operands.page_table
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0] == 0:
        return y
    shapes = find_shapes(operands)
    cut = cut or _cut(shapes)
    tiles = cut.base
    num_tiles, splits = tiles.count(shapes), tiles.splits
    parts = torch.empty(*q.shape[:2], splits, shapes.dim, dtype=torch.float32, device=q.device)
    logs = torch.empty(parts.shape[:3], dtype=torch.float32, device=q.device)
    constants = make_constants(cut, q.shape[1] // shapes.kv_heads, shapes.dim)
    launch_kernel(
        device.attend_mixed,
        (shapes.kv_heads, num_tiles, splits),
        y,
        parts,
        logs,
        q,
        k_pages,
        operands.v_pages,
        page_table,
        operands.query_starts,
        operands.kv_lens,
        operands.sinks,
        shapes.num_requests,
        q.shape[0],
        page_table.stride(0),
        operands.scale * operands.key_scale * math.log2(math.e),
        operands.value_scale,
        **constants,
        **make_page_constants(cut, q, k_pages),
        tile=cut,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    if splits > 1:
        launch_kernel(
            device.merge_tiles,
            (shapes.kv_heads, num_tiles),
            y,
            parts,
            logs,
            operands.query_starts,
            operands.kv_lens,
            operands.sinks,
            shapes.num_requests,
            operands.value_scale,
            **constants,
            tile=cut,
            num_warps=MERGE_WARPS,
        )
    return y


def make_constants(cut: MixedTiles, heads: int, dim: int) -> dict[str, int]:
    """Returns the constants that both kernels have."""
    return {
        "HEADS": heads,
        "HEAD_ROWS": cut.base.head_rows,
        "D": dim,
        "SPLITS": cut.base.splits,
        "SPLIT_KEYS": cut.split_keys,
        "SPLIT_QUERIES": SPLIT_QUERIES,
        "TILE_QUERIES": cut.base.queries,
    }


def make_page_constants(cut: MixedTiles, q: Tensor, k_pages: Tensor) -> dict[str, int]:
    return {
        "Q_STRIDE": q.stride(0),
        "PAGE_SIZE": k_pages.shape[2],
        "PAGE_STRIDE": k_pages.stride(0),
        "TILE_KEYS": cut.base.keys,
    }
