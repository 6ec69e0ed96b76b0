"""Numbers of tokens and requests that prompt steps are padded to.

There are few sizes: padding uses no expert, and the rest of a step costs little more for some extra rows. Several
request counts exist only for few tokens, where the cut of attention into tiles depends on them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

TOKENS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
REQUESTS = (1, 8, 32)  # and the largest number of requests
FEW_TOKENS = 192  # with more tokens: one request, or the largest number of requests


class PromptSize(NamedTuple):
    """Tokens and requests of a padded prompt step."""

    tokens: int
    requests: int  # also the rows with logits; fewer than `tokens`, else forward would compute logits of all rows


def prompt_sizes(most_tokens: int, most_requests: int) -> list[PromptSize]:
    """Lists the sizes of steps with up to `most_tokens` tokens and `most_requests` requests, smallest first."""
    end = bisect_left(TOKENS, max(most_tokens, min(most_tokens, most_requests) + 1)) + 1
    return [
        PromptSize(tokens, requests)
        for tokens in TOKENS[:end]
        for requests in _request_counts(tokens, most_requests)
    ]


def find_size(num_tokens: int, num_requests: int, most_requests: int) -> PromptSize | None:
    """Returns the size that a step is padded to, or None if it has too many tokens for any size."""
    index = bisect_left(TOKENS, max(num_tokens, num_requests + 1))
    if index == len(TOKENS):
        return None
    counts = _request_counts(TOKENS[index], most_requests)
    return PromptSize(TOKENS[index], counts[bisect_left(counts, num_requests)])


def _request_counts(tokens: int, most_requests: int) -> list[int]:
    most = min(tokens - 1, most_requests)
    few = REQUESTS if tokens <= FEW_TOKENS else REQUESTS[:1]
    return [*(count for count in few if count < most), most]
