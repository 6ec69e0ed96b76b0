"""The kernels of attention of prompts beside decoding requests, to be compiled for any GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.ops.attention_tiles import Shapes
from firesteel.kernels.ops.mixed.cut import MixedTiles, cut_mixed
from firesteel.kernels.ops.mixed.launch import (
    MERGE_WARPS,
    PLAN_WARPS,
    make_constants,
    make_page_constants,
    make_plan_constants,
)


def list_device_code(capability: tuple[int, int], shapes: Shapes) -> Iterator[DeviceCode]:
    """Lists the kernels of all steps with pages of 64: nothing of a step's size is compiled in."""
    cut = cut_mixed(replace(shapes, num_queries=1024, num_requests=255))
    yield _plan_code("triton:mixed plan", cut)
    yield _attend_code("triton:mixed step", cut, torch.bfloat16)
    if capability >= (8, 9):
        yield _attend_code("triton:mixed step, fp8-pages", cut, torch.float8_e4m3fn)
    yield _merge_code("triton:mixed merge", cut)


def _plan_code(variant: str, cut: MixedTiles) -> DeviceCode:
    from firesteel.kernels.triton.attention_plan import plan_tiles

    sizes = ("num_requests", "num_work", "wanted", "slots", "least_keys", "most_keys")
    signature = {"work": "*i32", "query_starts": "*i64", "kv_lens": "*i64"} | dict.fromkeys(sizes, "i32")
    return DeviceCode(
        variant=variant,
        kernel=plan_tiles,
        signature=signature,
        constants=make_plan_constants(cut),
        num_warps=PLAN_WARPS,
    )


def _attend_code(variant: str, cut: MixedTiles, pages: torch.dtype) -> DeviceCode:
    from firesteel.kernels.triton import attention_mixed as device

    q, k_pages = torch.empty(1, 64, 64, dtype=torch.bfloat16), torch.empty(1, 8, 64, 64, dtype=pages)
    page_type = "*bf16" if pages == torch.bfloat16 else "*fp8e4nv"
    signature: dict[str, str] = {"y": "*bf16", "parts": "*fp32", "logs": "*fp32", "work": "*i32", "num_work": "i32"}
    signature |= {"q": "*bf16", "k_pages": page_type, "v_pages": page_type, "sinks": "*bf16"}
    signature |= dict.fromkeys(("page_table", "query_starts", "kv_lens"), "*i64")
    signature |= dict.fromkeys(("num_requests", "num_tokens", "table_stride"), "i32")
    signature |= {"scale": "fp32", "value_scale": "fp32"}
    return DeviceCode(
        variant=variant,
        kernel=device.attend_mixed,
        signature=signature,
        constants=make_constants(cut, 8, 64) | make_page_constants(cut, q, k_pages),
        num_warps=cut.base.num_warps,
        num_stages=cut.base.num_stages,
    )


def _merge_code(variant: str, cut: MixedTiles) -> DeviceCode:
    from firesteel.kernels.triton import attention_mixed as device

    signature = {"y": "*bf16", "parts": "*fp32", "logs": "*fp32", "work": "*i32", "num_work": "i32"}
    signature |= {"query_starts": "*i64", "sinks": "*bf16", "value_scale": "fp32"}
    return DeviceCode(
        variant=variant,
        kernel=device.merge_tiles,
        signature=signature,
        constants=make_constants(cut, 8, 64),
        num_warps=MERGE_WARPS,
    )
