"""How many tokens and requests steps of prompts are padded to; knows only numbers.

Few sizes: padding meets no expert, and what is left of a step costs little more for some rows more. Many requests
are told apart only where there are few tokens, where attention's cut depends on them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

TOKENS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
REQUESTS = (1, 8, 32)  # and as many as there may be
FEW_TOKENS = 192  # beyond: one request, or as many as there may be


class PromptSize(NamedTuple):
    tokens: int
    requests: int  # and rows with logits: fewer than tokens, or all rows would be taken for theirs


def prompt_sizes(most_tokens: int, most_requests: int) -> list[PromptSize]:
    """Of steps of up to so many tokens and requests, the smallest first."""
    end = bisect_left(TOKENS, max(most_tokens, min(most_tokens, most_requests) + 1)) + 1
    return [
        PromptSize(tokens, requests)
        for tokens in TOKENS[:end]
        for requests in _request_counts(tokens, most_requests)
    ]


def find_size(num_tokens: int, num_requests: int, most_requests: int) -> PromptSize | None:
    """That a step of so many is padded to; None: there are too many tokens for one."""
    at = bisect_left(TOKENS, max(num_tokens, num_requests + 1))
    if at == len(TOKENS):
        return None
    counts = _request_counts(TOKENS[at], most_requests)
    return PromptSize(TOKENS[at], counts[bisect_left(counts, num_requests)])


def _request_counts(tokens: int, most_requests: int) -> list[int]:
    most = min(tokens - 1, most_requests)
    few = REQUESTS if tokens <= FEW_TOKENS else REQUESTS[:1]
    return [*(count for count in few if count < most), most]
