"""Tokens and the experts that they want, for tests of experts for many tokens on Hopper."""

import torch

from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands
from firesteel.kernels.stream.plan import Machine

TWO = Machine(2, 232_448)
HIDDEN, INTER, EXPERTS = 128, 64, 4
COUNTS = (0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193)


def draw_tokens(ids, *, activation="bf16", experts=EXPERTS, hidden=HIDDEN, inter=INTER, seed=1, device="cpu"):
    """Draws operands whose tokens want these experts [T, A]."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = random_experts(experts, hidden, inter, generator)
    x = torch.randn(len(ids), hidden, device=device, generator=generator).bfloat16()
    chosen = torch.rand(ids.shape, device=device, generator=generator).softmax(-1)
    return MoeMatmulOperands(
        x=x, ids=ids.to(device), weights=chosen, experts=weights, limit=1.0, activation=activation
    )


def share_out(*counts, seed=1):
    """Returns ids [T, 2] that give each expert this many tokens, in random order; the second ones are none."""
    ids = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    return torch.stack((ids, torch.full_like(ids, -1)), dim=1)


def choose(tokens, experts, active, seed=1):
    """Returns ids [T, A] of experts at random."""
    return torch.rand(tokens, experts, generator=torch.Generator().manual_seed(seed)).topk(active).indices
