"""Attention of one query a request over paged keys and values, for one to eight requests.

in   q             [T, Q, D] bf16      of decode_qkv
     k_pages       [P, K, S, D]        bf16 or fp8 E4M3; Q/K query heads share a kv head
     v_pages       [P, K, S, D]        of the same type
     page_table    [T, N] int64        entries wholly before the window are never read
     kv_lens       [T] int64           the query is the last token of each
     sinks         [Q] bf16 or None    a logit per query head that joins the denominator only
     window        None, or the number of tokens seen, the token itself included
     scale         of the products, not of the sinks
     key_scale     what keys in fp8 pages were divided by when they were stored; 1.0 in wider pages
     value_scale   the same for values
     dependent     may begin before the decode_qkv ahead of it ends, and after no other kernel: lengths, page table
                   and all tokens but the newest are read before its wait
out  mixed         [T, Q D] bf16
Scores and sums are fp32; `cuda` rounds probabilities to bf16 before they meet the values. Programs of a long page
table count themselves in memory: no two calls may be under way on different streams of a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from firesteel.kernels.cuda.geometry import PORTABLE_CLUSTER
from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.rope_kv_write import FP8, refuse_scales
from firesteel.kernels.stream.launch import (
    FIRST,
    Machine,
    build_kernel,
    find_machine,
    keep,
    launch,
    machine_of,
    refuse_layout,
    refuse_pages,
    refuse_strides,
    refuse_tokens,
    refuse_types,
)
from firesteel.kernels.stream.ring import MOST_TOKENS
from firesteel.kernels.stream.shapes import GPT_OSS, Draw, list_cases

HEAD_DIM = 64
TILE = 16  # tokens that a warp reads at a time
STAGES = 2  # tiles of a warp on their way
MOST_HEADS = 8  # query heads of a kv head: columns of a product
WARPS = 8
PART_FLOATS = MOST_HEADS * (2 + HEAD_DIM)  # what a program found: of each head the top, the sum, the values
MOST_PROGRAMS = 32  # that share a kv head: who joins what they found holds something of each in registers
SHORT = 12288  # tokens of page tables that a cluster serves best


def _bytes(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, kv_lens: Tensor, sinks: Tensor | None,
    window: int | None, scale: float, key_scale: float = 1.0, value_scale: float = 1.0, dependent: bool = False,
) -> int:  # fmt: skip
    seen = kv_lens if window is None else kv_lens.clamp(max=window)
    token_bytes = k_pages.shape[1] * k_pages.shape[3] * k_pages.element_size()
    return 2 * q.nbytes + 2 * int(seen.sum()) * token_bytes


@define_op(bytes=_bytes, tolerance=bf16(ulps=2, why="probabilities may be rounded to bf16 before the product"))
def decode_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, kv_lens: Tensor, sinks: Tensor | None,
    window: int | None, scale: float, key_scale: float = 1.0, value_scale: float = 1.0, dependent: bool = False,
) -> Tensor:  # fmt: skip
    starts = torch.arange(len(kv_lens) + 1, device=q.device)
    return attention.reference(
        q, k_pages, v_pages, page_table, starts, kv_lens, sinks, window, scale, key_scale, value_scale
    ).flatten(1)


def _accepts(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, kv_lens: Tensor, sinks: Tensor | None,
    window: int | None, scale: float, key_scale: float = 1.0, value_scale: float = 1.0, dependent: bool = False,
) -> str | None:  # fmt: skip
    (heads, dim), kv_heads = q.shape[1:], k_pages.shape[1]
    if dim != HEAD_DIM or heads % kv_heads or heads > MOST_HEADS * kv_heads:
        return f"takes up to {MOST_HEADS} heads of {HEAD_DIM} a kv head, not {heads} of {dim} for {kv_heads}"
    if k_pages.shape[2] % TILE:
        return f"reads pages of a multiple of {TILE} tokens, not {k_pages.shape[2]}"
    if q.shape[0] != len(kv_lens):
        return f"takes one query a request, not {q.shape[0]} of {len(kv_lens)}"
    return (
        refuse_tokens(q)
        or refuse_types(q, sinks)
        or refuse_pages(k_pages, v_pages)
        or refuse_scales(k_pages, key_scale, value_scale)
        or refuse_types(page_table, kv_lens, wanted=torch.int64)
        or refuse_layout(q, k_pages, v_pages)
        or refuse_strides(page_table, kv_lens, sinks)
    )


@dataclass(frozen=True, slots=True)
class Sharing:
    """How many programs share the tokens of a kv head, and whether what they found is joined in memory, by the last
    of them, or through their cluster: that is faster, but a cluster has to fit a part of the GPU."""

    programs: int = 1
    in_memory: bool = False

    def __str__(self) -> str:
        return f"{self.programs} in memory" if self.in_memory else f"cluster {self.programs}"


def share_tokens(machine: Machine, num_heads: int, most_held: int, window: int | None) -> Sharing:
    """`num_heads` are those of all requests, `most_held` the tokens that the page table has room for.

    All programs run at once: those that wait for an SM hold up their own.
    """
    if window is not None:
        return Sharing()
    most = min(MOST_PROGRAMS, max(1, machine.num_sms // num_heads))
    if most_held > SHORT and most > 1:
        return Sharing(most, in_memory=True)
    size = PORTABLE_CLUSTER
    while size > most:
        size //= 2
    return Sharing(size)


@keep
def kernel(
    machine: Machine, heads: int, kv_heads: int, sharing: Sharing, has_fp8_pages: bool = False
) -> CudaKernel:
    """Of half the bytes twice as many tiles are on their way."""
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": HEAD_DIM, "MOST_REQUESTS": MOST_TOKENS}
    stages = 2 * STAGES if has_fp8_pages else STAGES
    shared_bytes = WARPS * stages * 2 * TILE * HEAD_DIM * (1 if has_fp8_pages else 2)
    tile = {
        "FP8_PAGES": has_fp8_pages, "NUM_WARPS": WARPS, "NUM_STAGES": stages, "NUM_PARTS": sharing.programs,
        "PART_FLOATS": PART_FLOATS, "JOINS_IN_MEMORY": sharing.in_memory, "SHARED_BYTES": shared_bytes,
        "CTAS_PER_SM": 2 if machine.is_large else 1,
    }  # fmt: skip
    return build_kernel("decode_attention", {**sizes, **tile}, threads=32 * WARPS, shared_bytes=shared_bytes)


@decode_attention.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, kv_lens: Tensor, sinks: Tensor | None,
    window: int | None, scale: float, key_scale: float = 1.0, value_scale: float = 1.0, dependent: bool = False,
) -> Tensor:  # fmt: skip
    tokens, heads = q.shape[:2]
    kv_heads, page_size = k_pages.shape[1:3]
    mixed = torch.empty(tokens, heads * HEAD_DIM, dtype=q.dtype, device=q.device)
    machine = find_machine(q.device)
    sharing = share_tokens(machine, tokens * kv_heads, page_table.shape[1] * page_size, window)
    floats = tokens * kv_heads * sharing.programs * PART_FLOATS if sharing.in_memory else 0
    parts = torch.empty(floats, dtype=torch.float32, device=q.device)
    is_fp8 = k_pages.dtype == FP8
    args = (
        q, k_pages, v_pages, sinks, page_table, kv_lens, mixed, parts, scale * key_scale, page_size,
        page_table.shape[1], window or 0, *((value_scale,) if is_fp8 else ()),
    )  # fmt: skip
    grid = (sharing.programs, kv_heads, tokens)
    cluster = () if sharing.in_memory else (sharing.programs,)
    launch(kernel(machine, heads, kv_heads, sharing, is_fp8), grid, args, dependent, cluster=cluster, tile=sharing)
    return mixed


decode_attention.prefer("cuda")


@decode_attention.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    """One for each way to share: windows have one program, other layers what requests and page tables choose."""
    if capability < FIRST:
        return
    machine, heads = machine_of(capability), GPT_OSS.kv_heads
    tables = itertools.product(range(1, MOST_TOKENS + 1), (SHORT, 2 * SHORT))
    ways = {share_tokens(machine, heads * tokens, held, None) for tokens, held in tables}
    for one in sorted({Sharing(), *ways}, key=astuple):
        yield CudaCode(variant=f"cuda {one}", kernel=kernel(machine, GPT_OSS.heads, heads, one))
        fp8 = kernel(machine, GPT_OSS.heads, heads, one, has_fp8_pages=True)
        yield CudaCode(variant=f"cuda fp8-pages {one}", kernel=fp8)


@decode_attention.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """Lengths around the window's, a page's and a round of the programs'; slots no request owns hold NaN."""
    lens = (1300, 1, 129, 2, 64, 1025, 17, 300)
    ways = (
        ("full", None, True, 0), ("window", 128, True, 0), ("no sinks", None, False, 0),
        ("long table", None, True, SHORT + 1),
    )  # fmt: skip
    for label, tokens, sizes, draw in list_cases(device):
        for seen, window, has_sinks, room in ways:
            page_size = 16 if window is None else 64
            pages = _sample_pages(lens[:tokens], page_size, window, sizes.kv_heads, draw, room)
            q, sinks = draw.normal(tokens, sizes.heads, HEAD_DIM), draw.normal(sizes.heads, scale=3)
            args = (q, *pages, sinks if has_sinks else None, window, 0.125)
            yield Sample(f"{label} {seen}", args)
            if has_sinks:  # scales that the sinks, as large as the scores, must not see
                k_pages, v_pages = (one.float().mul(16).to(FP8) for one in pages[:2])
                stored = (q, k_pages, v_pages, *args[3:], 0.0625, 3.0)
                yield Sample(f"{label} {seen}, fp8 pages with scales", stored)


def _sample_pages(
    lens: tuple[int, ...], page_size: int, window: int | None, kv_heads: int, draw: Draw, room: int = 0
) -> tuple[Tensor, ...]:
    """Pages before the window are nobody's: the table points far outside. It has `room` for so many tokens."""
    counts = [-(-held // page_size) for held in lens]
    order = draw.permutation(sum(counts) + 3)
    width = max(*counts, -(-room // page_size))
    table = torch.zeros(len(lens), width, dtype=torch.int64, device=draw.device)
    k_pages, v_pages = torch.full((2, len(order), kv_heads, page_size, HEAD_DIM), float("nan"), device=draw.device)
    taken = 0
    for request, (count, held) in enumerate(zip(counts, lens, strict=True)):
        mine = order[taken : taken + count]
        taken += count
        first = 0 if window is None else max(0, held - window) // page_size
        table[request, :first], table[request, first:count] = 1 << 40, mine[first:]
        for pages in (k_pages, v_pages):
            fresh = draw.normal(kv_heads, count * page_size, HEAD_DIM).float()
            fresh[:, held:] = float("nan")
            pages[mine] = fresh.unflatten(1, (count, page_size)).transpose(0, 1)
    return k_pages.bfloat16(), v_pages.bfloat16(), table, torch.tensor(lens, device=draw.device)
