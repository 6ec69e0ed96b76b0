"""What a drafter network reads and returns.

A drafter keeps keys and values of its own in pages with the numbers of the target's full layers, so that prefixes,
preemption and eviction hold for both: a page that is found, or given up, has the keys and values of both.

Shape letters: T tokens, R requests, F features, K drafted tokens, P pages, S page size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from firesteel.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftContext:
    """Rows of the last step that stay in the texts, request after request, on the device.

    Of `batch`, drafters read positions, query_starts, kv_lens and the view of full layers. The page table of a
    request that drafts reaches beyond its tokens: as far as its drafter writes.
    """

    batch: Batch
    features: Tensor  # [T, F], the residuals at the drafter's boundaries side by side
    followers: Tensor  # [T] int64, the token after each row
    next_ids: Tensor  # [R] int64, the token after the last row of each request


class Drafter(Protocol):
    """A drafter network with its weights."""

    name: str
    boundaries: tuple[int, ...]  # of the target, see Taps
    most_tokens: int  # that it can draft at a time
    usual_acceptance: float | None  # of first drafted tokens, if it was measured
    reach: int  # positions after the text into which it may write keys and values while it drafts
    is_one_pass: bool  # drafts any number of tokens in one pass, not each in its own

    def page_bytes(self, page_size: int) -> int:
        """Returns the bytes that a page of the cache takes in addition."""

    def attach(self, num_pages: int, page_size: int, device: torch.device) -> None:
        """Allocates the keys and values of `num_pages` pages."""

    def draft(self, context: DraftContext, counts: Sequence[int]) -> Tensor:
        """Stores keys and values of the context's rows; returns drafted tokens [R, K] int64 on the device.

        `counts` are the tokens wanted per request, K the largest of them; what exceeds a request's count is
        undefined. 0 only stores.
        """

    def compute(self, context: DraftContext, wanted: Tensor, most: int) -> Tensor:
        """Does the work of `draft` with tensors alone: launches depend on shapes and `most`, so it can be captured.

        `wanted` [R] int64 are the counts, at most `most`. A request that wants no more tokens is computed as well,
        but stores nothing; rows with negative slots are padding.
        """


def upload_counts(counts: Sequence[int], device: torch.device) -> Tensor:
    """Returns counts on the device without waiting for it."""
    wanted = torch.tensor(counts, dtype=torch.int64)
    return (wanted.pin_memory() if device.type == "cuda" else wanted).to(device, non_blocking=True)
