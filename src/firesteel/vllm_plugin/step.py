"""One step as vLLM hands it to a model, with the tensors of both kinds of layers side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmStep:
    """Tensors of vLLM, in its types and block numbers.

    Shape letters: T tokens, R requests, N blocks that a request can hold.
    """

    token_ids: Tensor  # [T] int32
    positions: Tensor  # [T] int64
    query_starts: Tensor  # [R+1] int32; the last one is the number of tokens without padding
    kv_lens: Tensor  # [R] int32; 0 for padding
    full_slots: Tensor  # [T] int64; -1 for padding
    window_slots: Tensor  # [T] int64
    full_table: Tensor  # [R, N] int32
    window_table: Tensor  # [R, N] int32
    most_queries: int  # tokens of the request with the most of them

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_requests(self) -> int:
        return self.kv_lens.shape[0]

    @property
    def is_decoding(self) -> bool:
        """True if each request has one token."""
        return self.most_queries == 1 and self.num_tokens == self.num_requests


def idle_step(device: torch.device, tokens: int, requests: int, width: int) -> VllmStep:
    """Returns a step in which every row is padding, in vLLM's types, with block tables of `width`."""

    def numbers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    nowhere = torch.full((tokens,), -1, dtype=torch.int64, device=device)
    return VllmStep(
        token_ids=numbers(tokens),
        positions=torch.zeros(tokens, dtype=torch.int64, device=device),
        query_starts=numbers(requests + 1),
        kv_lens=numbers(requests),
        full_slots=nowhere,
        window_slots=nowhere,
        full_table=numbers(requests, width),
        window_table=numbers(requests, width),
        most_queries=1,
    )


def profiling_step(token_ids: Tensor, longest: int, page_size: int) -> VllmStep:
    """Returns a step of prompts with up to `longest` tokens each, which all write to the same pages."""
    device, tokens = token_ids.device, token_ids.shape[0]
    starts = torch.tensor([*range(0, tokens, longest), tokens], device=device, dtype=torch.int32)
    places = torch.arange(tokens, device=device) % longest
    pages = torch.arange(-(-longest // page_size), device=device, dtype=torch.int32)
    tables = pages.repeat(len(starts) - 1, 1)
    return VllmStep(
        token_ids=token_ids,
        positions=places,
        query_starts=starts,
        kv_lens=starts.diff(),
        full_slots=places,
        window_slots=places,
        full_table=tables,
        window_table=tables,
        most_queries=longest,
    )
