"""One step as vLLM hands it to a model, with the tensors of both kinds of layers side by side."""

from __future__ import annotations

from dataclasses import dataclass

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
