"""Device code of kv_write: a program puts the key and the value of one token into their page."""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.launch import launch_kernel
from firesteel.kernels.triton.arithmetic import round_to, widen

NUM_WARPS = 2


@triton.jit
def kv_write_kernel(
    k, v, k_pages, v_pages, slots, k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    K: tl.constexpr, D: tl.constexpr, S: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """HEADS and COLUMNS are K and D rounded up to powers of two. Pages are contiguous [P, K, S, D]."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    heads, columns = tl.arange(0, HEADS)[:, None], tl.arange(0, COLUMNS)[None, :]
    mask = (heads < K) & (columns < D)
    target = ((slot // S) * K + heads) * S * D + (slot % S) * D + columns
    key = widen(tl.load(k + token * k_token_stride + heads * k_head_stride + columns, mask=mask))
    tl.store(k_pages + target, round_to(key, k_pages.dtype.element_ty), mask=mask)
    value = widen(tl.load(v + token * v_token_stride + heads * v_head_stride + columns, mask=mask))
    tl.store(v_pages + target, round_to(value, v_pages.dtype.element_ty), mask=mask)


def launch(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
    tokens, heads, dim = k.shape
    launch_kernel(
        kv_write_kernel, (tokens,),
        k, v, k_pages, v_pages, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        K=heads, D=dim, S=k_pages.shape[2],
        HEADS=triton.next_power_of_2(heads), COLUMNS=triton.next_power_of_2(dim), num_warps=NUM_WARPS,
    )  # fmt: skip
