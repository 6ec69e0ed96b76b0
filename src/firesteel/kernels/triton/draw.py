"""Draws tokens by the largest noisy score (Gumbel-max); the random numbers are those of kernels/noise.py."""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.noise import LEAST_TEMPERATURE, MOST_TEMPERATURE
from firesteel.kernels.tiles.launch import divide_up, launch_kernel, power_of_two

COLUMNS = 2048
NUM_WARPS = 4
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
FIRST_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND_FACTOR = tl.constexpr(0x94D049BB133111EB)
SMALL = tl.constexpr(0.125)
LEAST, MOST = tl.constexpr(LEAST_TEMPERATURE), tl.constexpr(MOST_TEMPERATURE)


@triton.jit
def exponential(uniform):
    """Returns -log(1 - uniform), accurate for the smallest values too: they decide a draw."""
    series = 1 / 8 + uniform * (1 / 9)
    series = 1 / 7 + uniform * series
    series = 1 / 6 + uniform * series
    series = 1 / 5 + uniform * series
    series = 1 / 4 + uniform * series
    series = 1 / 3 + uniform * series
    series = 1 / 2 + uniform * series
    return tl.where(uniform < SMALL, uniform + uniform * uniform * series, -tl.log(1 - uniform))


@triton.jit
def gumbel(key, columns):
    """Returns Gumbel noise: splitmix64 of the stream's numbers `columns`, then -log of an exponential variable."""
    mixed = key.to(tl.uint64, bitcast=True) + (columns + 1).to(tl.uint64) * GOLDEN
    mixed = (mixed ^ (mixed >> 30)) * FIRST_FACTOR
    mixed = (mixed ^ (mixed >> 27)) * SECOND_FACTOR
    mixed = (mixed ^ (mixed >> 31)) >> 11
    uniform = (mixed.to(tl.int64).to(tl.float32) + 0.5) * (2.0**-53)
    return -tl.log(exponential(tl.minimum(uniform, 1 - 2.0**-24)))


@triton.jit(do_not_specialize_on_alignment=["best"])  # a step stores it beside its token ids, at any alignment
def draw_part(
    logits,
    best,
    temperatures,
    keys,
    part_scores,
    part_ids,
    stride,
    V: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Finds the largest score of one part of a row's columns; grid [R, PARTS]."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    temperature = tl.load(temperatures + row)
    scores = tl.load(logits + row * stride + columns, mask=columns < V, other=float("-inf")) - tl.load(best + row)
    if temperature > 0:
        scores = scores / tl.minimum(tl.maximum(temperature, LEAST), MOST) + gumbel(tl.load(keys + row), columns)
    scores = tl.where(scores == scores, scores, float("-inf"))  # NaN is not a candidate
    score, place = tl.max(scores, axis=0, return_indices=True)
    tl.store(part_scores + row * PARTS + part, score)
    tl.store(part_ids + row * PARTS + part, tl.minimum(part * COLUMNS + place, V - 1).to(tl.int64))


@triton.jit
def choose_part(part_scores, part_ids, token_ids, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, WIDTH)
    scores = tl.load(part_scores + row * PARTS + parts, mask=parts < PARTS, other=float("-inf"))
    _, part = tl.max(scores, axis=0, return_indices=True)
    tl.store(token_ids + row, tl.load(part_ids + row * PARTS + tl.minimum(part, PARTS - 1)))


def count_parts(vocab_size: int) -> int:
    return divide_up(vocab_size, COLUMNS)


def launch(logits: Tensor, best: Tensor, temperatures: Tensor, keys: Tensor) -> Tensor:
    (rows, vocab_size), device = logits.shape, logits.device
    token_ids = torch.empty(rows, dtype=torch.int64, device=device)
    if not rows:
        return token_ids
    count = count_parts(vocab_size)
    part_scores = torch.empty(rows, count, dtype=torch.float32, device=device)
    part_ids = torch.empty(rows, count, dtype=torch.int64, device=device)
    launch_kernel(
        draw_part,
        (rows, count),
        logits,
        best,
        temperatures,
        keys,
        part_scores,
        part_ids,
        logits.stride(0),
        V=vocab_size,
        PARTS=count,
        COLUMNS=COLUMNS,
        num_warps=NUM_WARPS,
    )
    launch_kernel(
        choose_part, (rows,), part_scores, part_ids, token_ids, PARTS=count, WIDTH=power_of_two(count), num_warps=1
    )
    return token_ids
