"""Top-k, top-p and min-p as one threshold per row.

A token stays if it is at least as likely as the least likely token that must be kept. Ties therefore stay together,
and the result does not depend on their order. Sums are of integers, so they are exact on every device and in every
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log

import torch
from torch import Tensor

from firesteel.engine.transfer import upload, upload_floats, upload_ints
from firesteel.types import SamplingParams

_UNIT = 2.0**40  # integer weight of the most likely token; the sum of 2^22 of them fits 63 bits


def truncate(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Sets dropped tokens to -inf, in place; scores [N, V] fp32 are logits / temperature with a maximum of 0."""
    vocab_size, device = scores.shape[-1], scores.device
    limits = [min(wanted.top_k, vocab_size) if wanted.top_k > 0 else vocab_size for wanted in params]
    sorting = [row for row, wanted in enumerate(params) if limits[row] < vocab_size or wanted.top_p < 1]
    if not sorting and not any(wanted.min_p for wanted in params):
        return scores
    threshold = upload_floats([log(wanted.min_p) if wanted.min_p else -inf for wanted in params], device)
    if sorting:
        index = upload_ints(sorting, device)
        lowest = _compute_threshold(
            scores[index], [limits[row] for row in sorting], [params[row].top_p for row in sorting]
        )
        threshold[index] = lowest.maximum(threshold[index])
    return scores.masked_fill_(scores < threshold[:, None], -inf)


def _compute_threshold(scores: Tensor, limits: Sequence[int], shares: Sequence[float]) -> Tensor:
    """Returns [N]: the score of the last token that top-k (`limits`) and top-p (`shares`) keep."""
    width = max(limits)
    ordered = scores.sort(descending=True).values if width == scores.shape[-1] else scores.topk(width).values
    limit = upload_ints(limits, scores.device)[:, None]
    # A share of 1 becomes 2, which no sum reaches: tokens whose integer weight rounds to 0 stay as well.
    share = upload(
        torch.tensor([2.0 if value == 1 else value for value in shares], dtype=torch.float64), scores.device
    )
    is_dropped = torch.arange(width, device=scores.device) >= limit
    weights = (ordered.exp() * _UNIT).long().masked_fill_(is_dropped, 0)
    enough = (weights.sum(-1) * share).ceil().long()
    before = weights.cumsum(-1) - weights
    return ordered.masked_fill(is_dropped | (before >= enough[:, None]), inf).amin(-1)
