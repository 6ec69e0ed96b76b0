"""Makes the most likely token of each request the next step's input, for one to eight requests.

in   best          [N, T] int64   of decode_lm_head; the largest of a column is the token
     embedding     [V, H] bf16
     token_ids     [T] int64      written
     positions     [T] int64      each grows by one
     kv_lens       [T] int64      written: the new position + 1
     full_slots    [T] int64      written: page * S + offset of the new position, in layers that see all
     window_slots  [T] int64      written: the same in layers with a window
     full_table    [T, N] int64   pages of each request
     window_table  [T, M] int64
     page_size     S
     r             [T, H] bf16    written: the token's embedding
     largest       [T] fp32       written: the token's logit
     dependent     may begin before what is ahead of it ends: nothing is read before its wait
out  token_ids, positions, kv_lens, full_slots, window_slots, r, largest   the same tensors
A position past the end of a table gets a slot of its last page: whoever counts the steps ends before.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.decode.lm_head import find_best
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.stream.launch import (
    FIRST,
    build_kernel,
    keep,
    launch,
    refuse_layout,
    refuse_strides,
    refuse_tokens,
    refuse_types,
)
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases

THREADS = 512


def _bytes(
    best: Tensor, embedding: Tensor, token_ids: Tensor, positions: Tensor, kv_lens: Tensor, full_slots: Tensor,
    window_slots: Tensor, full_table: Tensor, window_table: Tensor, page_size: int, r: Tensor,
    largest: Tensor, dependent: bool = False,
) -> int:  # fmt: skip
    return best.nbytes + 2 * r.nbytes + 8 * positions.nbytes


@define_op(bytes=_bytes, tolerance=exact(why="whole numbers and copies"))
def decode_sample(
    best: Tensor, embedding: Tensor, token_ids: Tensor, positions: Tensor, kv_lens: Tensor, full_slots: Tensor,
    window_slots: Tensor, full_table: Tensor, window_table: Tensor, page_size: int, r: Tensor,
    largest: Tensor, dependent: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    top = best.amax(0)
    token_ids.copy_(~top & 0xFFFFFFFF)
    bits = (top >> 32).int()
    largest.copy_(torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).view(torch.float32))
    r.copy_(embedding[token_ids])
    positions += 1
    kv_lens.copy_(positions + 1)
    for slots, table in ((full_slots, full_table), (window_slots, window_table)):
        pages = (positions // page_size).clamp(max=table.shape[1] - 1)
        slots.copy_(table.gather(1, pages[:, None])[:, 0] * page_size + positions % page_size)
    return token_ids, positions, kv_lens, full_slots, window_slots, r, largest


def _accepts(
    best: Tensor, embedding: Tensor, token_ids: Tensor, positions: Tensor, kv_lens: Tensor, full_slots: Tensor,
    window_slots: Tensor, full_table: Tensor, window_table: Tensor, page_size: int, r: Tensor,
    largest: Tensor, dependent: bool = False,
) -> str | None:  # fmt: skip
    if r.shape[1] % 8:
        return f"copies rows of a multiple of 8 values, not {r.shape[1]}"
    numbers = (token_ids, positions, kv_lens, full_slots, window_slots, full_table, window_table)
    return (
        refuse_tokens(r)
        or refuse_types(embedding, r)
        or refuse_types(best, *numbers, wanted=torch.int64)
        or refuse_types(largest, wanted=torch.float32)
        or refuse_layout(embedding, r)
        or refuse_strides(best, *numbers, largest)
    )


@keep
def kernel(hidden: int) -> CudaKernel:
    return build_kernel("decode_sample", {"HIDDEN": hidden}, threads=THREADS)


@decode_sample.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_sample(
    best: Tensor, embedding: Tensor, token_ids: Tensor, positions: Tensor, kv_lens: Tensor, full_slots: Tensor,
    window_slots: Tensor, full_table: Tensor, window_table: Tensor, page_size: int, r: Tensor,
    largest: Tensor, dependent: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    written = (token_ids, positions, kv_lens, full_slots, window_slots)
    tables = (full_table, window_table)
    numbers = (best.shape[0], page_size, full_table.shape[1], window_table.shape[1])
    launch(kernel(r.shape[1]), (r.shape[0],), (best, embedding, *written, *tables, r, largest, *numbers), dependent)
    return *written, r, largest


decode_sample.prefer("cuda")


@decode_sample.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    if capability >= FIRST:
        yield CudaCode(variant="cuda", kernel=kernel(GPT_OSS.hidden))


@decode_sample.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """The first request is about to begin a page, the second to pass the end of its table."""
    page_size, width = 16, 9
    for label, tokens, sizes, draw in list_cases(device):
        logits = draw.normal(tokens, sizes.vocabulary).float()
        positions = draw.permutation(page_size * (width - 1))[:tokens].clone()
        positions[:2] = torch.tensor([3 * page_size - 1, page_size * width - 1], device=device)[:tokens]
        tables = [
            draw.permutation(tokens * width + 5)[: tokens * width].view(tokens, width).clone() for _ in range(2)
        ]
        numbers = [torch.zeros(tokens, dtype=torch.int64, device=device) for _ in range(4)]
        args = (
            find_best(logits, 7), draw.normal(sizes.vocabulary, sizes.hidden), numbers[0], positions, *numbers[1:],
            *tables, page_size, draw.normal(tokens, sizes.hidden), torch.zeros(tokens, device=device),
        )  # fmt: skip
        yield Sample(label, args)
