"""Rows of logits to draw from, one per request, and how many of them are processed at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from firesteel.types import SamplingParams

TokenIds = Sequence[int] | npt.NDArray[np.int64]  # an array avoids converting long histories
_MAX_LOGITS = 2**23  # per chunk of rows: 41 rows of gpt-oss, 64 MiB per temporary tensor of 8-byte values


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One request at one position. The docstring of sampler.py describes the fields."""

    params: SamplingParams
    position: int
    name: str = ""
    token_ids: TokenIds = ()
    num_prompt: int = 0
    stop_token_ids: Collection[int] = ()
    allowed: Tensor | None = None

    @property
    def barred(self) -> Collection[int]:
        """Tokens that would end the request before min_tokens, or complete one of its bad words."""
        stops = self.stop_token_ids if self.position - self.num_prompt < self.params.min_tokens else ()
        return {*stops, *self._find_last_tokens()} if self.params.bad_words else stops

    def _find_last_tokens(self) -> Iterator[int]:
        """Yields the last token of each bad word whose other tokens were just generated."""
        latest = self.token_ids[-1] if len(self.token_ids) > self.num_prompt else None
        for *others, last in self.params.bad_words:
            start = max(self.num_prompt, len(self.token_ids) - len(others))
            if not others or (others[-1] == latest and list(self.token_ids[start:]) == others):
                yield last

    @property
    def is_plain(self) -> bool:
        """True if the token is the argmax of unchanged logits and no logprobs are requested."""
        params = self.params
        return not (
            params.temperature > 0
            or params.logprobs is not None
            or params.has_penalties
            or params.logit_bias
            or params.allowed_token_ids is not None
            or self.allowed is not None
            or self.barred
        )


def rows_at_once(vocab_size: int) -> int:
    """Returns the number of rows per chunk that keeps temporary tensors small."""
    return max(1, _MAX_LOGITS // vocab_size)


def split_rows(rows: Sequence[int], vocab_size: int) -> Iterator[Sequence[int]]:
    """Splits row indices into chunks of at most `rows_at_once`."""
    step = rows_at_once(vocab_size)
    return (rows[start : start + step] for start in range(0, len(rows), step))
