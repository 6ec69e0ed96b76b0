"""Launches attention of prompts beside decoding requests."""

from __future__ import annotations

import torch
from torch import Tensor

from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.attention_tiles import find_tiles, list_factors, list_inputs
from firesteel.kernels.ops.mixed.cut import SPLIT_QUERIES, MixedTiles, cut_mixed
from firesteel.kernels.tiles.launch import launch_kernel

MERGE_WARPS = 8


def attend_mixed(operands: AttentionOperands, cut: MixedTiles | None = None) -> Tensor:
    """Launches a kernel without a window, and one that merges if any request may be split."""
    from firesteel.kernels.triton import attention_mixed as device

    q, k_pages = operands.q, operands.k_pages
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0] == 0:
        return y
    shapes, found = find_tiles(cut_mixed, operands)
    cut = cut or found
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
        *list_inputs(operands),
        *list_factors(operands),
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
