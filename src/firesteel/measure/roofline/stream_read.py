"""A GPU kernel that reads memory once, as fast as it comes, and does nothing else worth mentioning.

in   data  [N] int32
out  sums  [programs] int32   wrapping sums of what each program read, so that no load can be dropped
Moves 4 N bytes. Programs, all resident at once, walk the buffer in tiles side by side.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_WORDS = 8192
NUM_WARPS = 8
PROGRAMS_AN_SM = 4


@triton.jit
def read_kernel(data, sums, num_words, TILE: tl.constexpr):
    """Loads of whole tiles carry no mask: ptxas then keeps five of 16 bytes a thread in flight, else two."""
    program = tl.program_id(0)
    words = tl.arange(0, TILE)
    whole = num_words // TILE
    total = tl.zeros([TILE], dtype=tl.int32)
    for tile in range(program, whole, tl.num_programs(0)):
        total += tl.load(data + tile * TILE + words, eviction_policy="evict_first")
    if program == 0:
        rest = whole * TILE + words
        total += tl.load(data + rest, mask=rest < num_words, other=0)
    tl.store(sums + program, tl.sum(total))


def stream_read(data: Tensor, num_sms: int) -> Tensor:
    if data.numel() > 1 << 30:
        raise ValueError(f"{data.numel()} words: positions are 32 bit, read at most 2**30 at once")
    programs = num_sms * PROGRAMS_AN_SM
    sums = torch.empty(programs, dtype=torch.int32, device=data.device)
    read_kernel[(programs,)](data, sums, data.numel(), TILE=TILE_WORDS, num_warps=NUM_WARPS)
    return sums
