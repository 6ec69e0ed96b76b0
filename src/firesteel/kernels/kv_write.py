"""Puts new keys and values into their pages, in place.

in   k, v              [T, K, D]
     k_pages, v_pages  [P, K, S, D]   written
     slots             [T] int64      page * S + offset; every slot at most once
Rounded once to the pages' type.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.kernels.op import DeviceCode, Sample, define_op
from firesteel.kernels.tolerance import exact
from firesteel.kernels.triton_ready import triton_ready


def _bytes(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> int:
    return k.nbytes + v.nbytes + slots.nbytes + 2 * k.numel() * k_pages.element_size()


@define_op(bytes=_bytes, tolerance=exact(why="a copy"))
def kv_write(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    page_size = k_pages.shape[2]
    pages, offsets = slots // page_size, slots % page_size
    k_pages[pages, :, offsets] = k.to(k_pages.dtype)
    v_pages[pages, :, offsets] = v.to(v_pages.dtype)
    return k_pages, v_pages


def _accepts(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> str | None:
    if k_pages.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"writes bf16, fp16 and fp32 pages, not {k_pages.dtype}"
    if k.stride(-1) != 1 or v.stride(-1) != 1:
        return "wants heads whose values lie side by side"
    contiguous = k_pages.is_contiguous() and v_pages.is_contiguous() and slots.is_contiguous()
    return None if contiguous else "wants contiguous pages and slots"


@kv_write.implementation("triton", needs=triton_ready(), accepts=_accepts)
def triton_kv_write(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    from firesteel.kernels.triton.kv_write import launch

    launch(k, v, k_pages, v_pages, slots)
    return k_pages, v_pages


@kv_write.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    from firesteel.kernels.triton.kv_write import NUM_WARPS, kv_write_kernel

    signature = {"k": "*bf16", "v": "*bf16", "k_pages": "*bf16", "v_pages": "*bf16", "slots": "*i64"}
    signature |= dict.fromkeys(("k_token_stride", "k_head_stride", "v_token_stride", "v_head_stride"), "i32:16")
    yield DeviceCode(
        variant="triton", kernel=kv_write_kernel, signature=signature,
        constants={"K": 8, "D": 64, "S": 64, "HEADS": 8, "COLUMNS": 64}, num_warps=NUM_WARPS,
    )  # fmt: skip


@kv_write.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    for tokens, page_size in ((1, 64), (65, 16), (300, 64)):
        k, v = torch.randn(2, tokens, 8, 64, device=device, generator=generator, dtype=torch.bfloat16)
        k_pages, v_pages = torch.zeros(2, 512 // page_size, 8, page_size, 64, device=device).bfloat16()
        slots = torch.randperm(512, device=device, generator=generator)[:tokens]
        yield Sample(f"T={tokens} S={page_size}", (k, v, k_pages, v_pages, slots))
