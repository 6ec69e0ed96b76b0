"""Launches attention of prompts beside decoding requests."""

from __future__ import annotations

import torch
from torch import Tensor

from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.attention_tiles import find_tiles, list_factors, list_inputs
from firesteel.kernels.ops.mixed.cut import SPLIT_QUERIES, MixedTiles, cut_mixed
from firesteel.kernels.tiles.launch import divide_up, launch_kernel

PLAN_WARPS = 4
MERGE_WARPS = 8
WORK_ROWS = 5


def attend_mixed(operands: AttentionOperands, cut: MixedTiles | None = None) -> Tensor:
    """Launches a plan, a kernel without a window, and one that merges if any request may be split."""
    from firesteel.kernels.triton import attention_mixed as device

    q, k_pages = operands.q, operands.k_pages
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0] == 0:
        return y
    shapes, found = find_tiles(cut_mixed, operands)
    cut = cut or found
    tiles = cut.base
    rows = (cut.slots, shapes.kv_heads, tiles.queries * tiles.head_rows)
    parts = torch.empty(*rows, shapes.dim, dtype=torch.float32, device=q.device)
    logs = torch.empty(rows, dtype=torch.float32, device=q.device)
    work = plan_work(operands, cut, cut.count_work(shapes))
    num_work = work.shape[1]
    constants = make_constants(cut, q.shape[1] // shapes.kv_heads, shapes.dim)
    launch_kernel(
        device.attend_mixed,
        (shapes.kv_heads, num_work),
        y,
        parts,
        logs,
        work,
        num_work,
        *list_inputs(operands),
        *list_factors(operands),
        **constants,
        **make_page_constants(cut, q, k_pages),
        tile=cut,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    if cut.slots:
        launch_kernel(
            device.merge_tiles,
            (shapes.kv_heads, num_work),
            y,
            parts,
            logs,
            work,
            num_work,
            operands.query_starts,
            operands.sinks,
            operands.value_scale,
            **constants,
            tile=cut,
            num_warps=MERGE_WARPS,
        )
    return y


def plan_work(operands: AttentionOperands, cut: MixedTiles, num_work: int) -> Tensor:
    """Returns what each of `num_work` programs per kv head computes, as `plan_tiles` describes it."""
    from firesteel.kernels.triton.attention_plan import PLANNED, plan_tiles

    lens = operands.kv_lens
    work = torch.empty(WORK_ROWS, num_work, dtype=torch.int32, device=lens.device)
    launch_kernel(
        plan_tiles,
        (divide_up(num_work, PLANNED.value),),
        work,
        operands.query_starts,
        lens,
        len(lens),
        num_work,
        cut.wanted,
        cut.slots,
        cut.least_keys,
        cut.most_keys,
        **make_plan_constants(cut),
        tile=cut,
        num_warps=PLAN_WARPS,
    )
    return work


def make_plan_constants(cut: MixedTiles) -> dict[str, int]:
    return {"SPLIT_QUERIES": SPLIT_QUERIES, "TILE_QUERIES": cut.base.queries}


def make_constants(cut: MixedTiles, heads: int, dim: int) -> dict[str, int]:
    """Returns the constants of the kernels that compute and that merge."""
    return {"HEADS": heads, "HEAD_ROWS": cut.base.head_rows, "D": dim, "TILE_QUERIES": cut.base.queries}


def make_page_constants(cut: MixedTiles, q: Tensor, k_pages: Tensor) -> dict[str, int]:
    return {
        "Q_STRIDE": q.stride(0),
        "PAGE_SIZE": k_pages.shape[2],
        "PAGE_STRIDE": k_pages.stride(0),
        "TILE_KEYS": cut.base.keys,
    }
