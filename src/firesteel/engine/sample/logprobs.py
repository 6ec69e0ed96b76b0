"""Log-probabilities of given tokens and of the most likely ones.

They are the log-softmax of the model's logits before penalties, bias, masks and temperature, as OpenAI and vLLM
report them. So they can be compared between requests, and those of a prompt with those of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.engine.sample.row import rows_at_once
from firesteel.types import TokenLogprobs

__all__ = ["Logprobs", "TokenLogprobs", "score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Logprobs of N tokens, on the device or copied from it."""

    token_ids: Tensor  # [N] int64
    chosen: Tensor  # [N] fp32
    top_ids: Tensor  # [N, M] int64
    top: Tensor  # [N, M] fp32

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.token_ids, self.chosen, self.top_ids, self.top

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Logprobs:
        """Rebuilds the object from the result of `tensors`."""
        token_ids, chosen, top_ids, top = tensors
        return cls(token_ids=token_ids, chosen=chosen, top_ids=top_ids, top=top)

    def read(self, num_top: Sequence[int]) -> list[TokenLogprobs]:
        """Waits for the device; token n keeps its num_top[n] most likely alternatives."""
        columns = (*self.tensors(), num_top)
        rows = zip(*(column.tolist() if isinstance(column, Tensor) else column for column in columns), strict=True)
        return [
            TokenLogprobs(token_id=token, logprob=chosen, top=_ranked(top_ids, top)[:count])
            for token, chosen, top_ids, top, count in rows
        ]


def score(logits: Tensor, token_ids: Tensor, num_top: int, step: int = 0) -> Logprobs:
    """Scores token_ids[n], int64 on the device of the logits, with row n of logits [N, V] fp32.

    `step` rows are scored at once; 0: as many as keep temporary tensors small.
    """
    vocab_size = logits.shape[-1]
    num_top = min(num_top, vocab_size)
    chosen, top, top_ids = [], [], []
    step = step or rows_at_once(vocab_size)
    for part, tokens in zip(logits.split(step), token_ids.split(step), strict=True):
        total = part.logsumexp(-1, keepdim=True)
        best = part.topk(num_top)
        chosen.append((part.gather(-1, tokens[:, None]) - total)[:, 0])
        top.append(best.values - total)
        top_ids.append(best.indices)
    return Logprobs(token_ids=token_ids, chosen=torch.cat(chosen), top_ids=torch.cat(top_ids), top=torch.cat(top))


def _ranked(token_ids: Sequence[int], logprobs: Sequence[float]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(zip(token_ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0])))
