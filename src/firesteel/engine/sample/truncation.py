"""Top-k, top-p and min-p as one threshold a row; knows no seed and no penalties.

A token stays if it is at least as likely as the least likely one to be kept, so equals stay together and the result
does not depend on their order. Sums are of whole numbers: they are exact, whatever the device and the rows beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log

import torch
from torch import Tensor

from firesteel.engine.transfer import upload, upload_floats, upload_ints
from firesteel.types import SamplingParams

_UNIT = 2.0**40  # weight of the most likely token; 2^22 such weights fit 63 bits


def truncate(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Sets what is left out to -inf, in place; scores [N, V] fp32 are logits / temperature, a row's largest 0."""
    vocab_size, device = scores.shape[-1], scores.device
    limits = [min(one.top_k, vocab_size) if one.top_k > 0 else vocab_size for one in params]
    sorting = [row for row, one in enumerate(params) if limits[row] < vocab_size or one.top_p < 1]
    if not sorting and not any(one.min_p for one in params):
        return scores
    threshold = upload_floats([log(one.min_p) if one.min_p else -inf for one in params], device)
    if sorting:
        index = upload_ints(sorting, device)
        found = _threshold(scores[index], [limits[row] for row in sorting], [params[row].top_p for row in sorting])
        threshold[index] = found.maximum(threshold[index])
    return scores.masked_fill_(scores < threshold[:, None], -inf)


def _threshold(scores: Tensor, limits: Sequence[int], shares: Sequence[float]) -> Tensor:
    """[N]: score of the last token kept among the `limits` most likely, by their weight before it."""
    width = max(limits)
    ordered = scores.sort(descending=True).values if width == scores.shape[-1] else scores.topk(width).values
    limit = upload_ints(limits, scores.device)[:, None]
    # A share of 1 is doubled: no sum reaches it, so that weights too small to count stay as well.
    share = upload(torch.tensor([2.0 if one == 1 else one for one in shares], dtype=torch.float64), scores.device)
    is_left_out = torch.arange(width, device=scores.device) >= limit
    weights = (ordered.exp() * _UNIT).long().masked_fill_(is_left_out, 0)
    enough = (weights.sum(-1) * share).ceil().long()
    before = weights.cumsum(-1) - weights
    return ordered.masked_fill(is_left_out | (before >= enough[:, None]), inf).amin(-1)
