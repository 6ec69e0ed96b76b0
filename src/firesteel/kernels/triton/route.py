"""Device code of route: top-k of a token's router logits, which linear's kernels computed in fp32."""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.tiles.launch import launch_kernel, power_of_two
from firesteel.kernels.triton.linear import launch_tiles, launch_vector

NUM_WARPS = 1
VECTOR_TOKENS = 64  # up to this many, reading the small matrix again from L2 beats a few tiles


@triton.jit
def choose_kernel(
    logits, ids, weights, num_tokens, E: tl.constexpr, A: tl.constexpr, EXPERTS: tl.constexpr, RANKS: tl.constexpr
):
    """Chooses experts. EXPERTS and RANKS are E and A rounded up to powers of 2. On ties the lowest id wins.

    Rows from `num_tokens` on, if it is given, are padding and get no expert.
    """
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, EXPERTS)
    ranks = tl.arange(0, RANKS)
    left = tl.load(logits + token * E + experts, mask=experts < E, other=float("-inf"))
    chosen = tl.full((RANKS,), float("-inf"), tl.float32)
    chosen_ids = tl.zeros((RANKS,), tl.int64)
    for rank in tl.static_range(A):
        best = tl.max(left, axis=0)
        # NaN never compares equal: the last expert is used instead, so that ids stay in range
        expert = tl.min(tl.where(left == best, experts, E - 1), axis=0)
        chosen = tl.where(ranks == rank, best, chosen)
        chosen_ids = tl.where(ranks == rank, expert.to(tl.int64), chosen_ids)
        left = tl.where(experts == expert, float("-inf"), left)
    shares = tl.exp(chosen - tl.max(chosen, axis=0))
    shares = shares / tl.sum(shares, axis=0)
    if num_tokens is not None:
        is_token = token < tl.load(num_tokens)
        chosen_ids = tl.where(is_token, chosen_ids, -1)
        shares = tl.where(is_token, shares, 0.0)
    tl.store(ids + token * A + ranks, chosen_ids, mask=ranks < A)
    tl.store(weights + token * A + ranks, shares, mask=ranks < A)


def launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    logits: Tensor,
    ids: Tensor,
    weights: Tensor,
    num_tokens: Tensor | None = None,
) -> None:
    multiply = launch_vector if ids.shape[0] <= VECTOR_TOKENS else launch_tiles
    multiply(x, weight, bias, logits)
    launch_choice(logits, ids, weights, num_tokens)


def launch_choice(logits: Tensor, ids: Tensor, weights: Tensor, num_tokens: Tensor | None) -> None:
    """Writes ids and weights [T, A] of the most likely experts of each row of logits [T, E]."""
    (tokens, active), experts = ids.shape, logits.shape[1]
    launch_kernel(
        choose_kernel,
        (tokens,),
        logits,
        ids,
        weights,
        num_tokens,
        E=experts,
        A=active,
        EXPERTS=power_of_two(experts),
        RANKS=power_of_two(active),
        num_warps=NUM_WARPS,
    )
