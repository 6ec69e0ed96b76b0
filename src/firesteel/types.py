"""The nouns that cross borders between parts; knows no part's inside.

Shape letters: T tokens, R requests, Q query heads, K kv heads, D head dim, V vocabulary, P pages, S page size.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from firesteel.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to continue a prompt. Temperature 0 is greedy; the same seed gives the same tokens."""

    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()  # besides the checkpoint's own
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UserError(f"max_tokens = {self.max_tokens}: must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature = {self.temperature}: must be 0 (greedy) or a positive number")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvView:
    """Where the tokens of a batch lie in the pages of one kind of layer (full or window)."""

    page_table: Tensor  # [R, N] int64, page of each S tokens; entries before the window may be stale
    slots: Tensor  # [T] int64, page * S + offset of each new token


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The tokens of one step, all requests end to end; rows of request r are query_starts[r]:query_starts[r+1]."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    query_starts: Tensor  # [R+1] int64
    kv_lens: Tensor  # [R] int64, tokens held after this step, the new ones included
    full: KvView
    window: KvView


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Keys and values in pages, one pair of tensors a layer, HND: [P, K, S, D]."""

    keys: list[Tensor]
    values: list[Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a prompt was continued with."""

    token_ids: list[int]
    text: str
    finish_reason: str  # "stop" or "length"
