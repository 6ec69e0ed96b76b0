"""What the libraries of experts ask of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_TOKENS = 1 << 15  # so that triton_kernels numbers the pairs of a tile in 16 bits


def refuse_tokens(x: Tensor, ids: Tensor, weights: Tensor) -> str | None:
    """Returns why no library takes these tokens, ids and weights, or None."""
    if x.dtype != torch.bfloat16 or weights.dtype != torch.float32:
        return f"takes bf16 tokens and fp32 weights, not {x.dtype} and {weights.dtype}"
    if not 1 <= x.shape[0] <= MOST_TOKENS:
        return f"is for 1 to {MOST_TOKENS} tokens, not {x.shape[0]}"
    if not all(tensor.is_contiguous() for tensor in (x, ids, weights)):
        return "takes contiguous tokens, ids and weights"
    return None
