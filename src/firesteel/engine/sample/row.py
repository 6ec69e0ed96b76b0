"""What a draw is made from and what comes of it, for one request; knows no logits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from firesteel.engine.sample.logprobs import TokenLogprobs
from firesteel.types import SamplingParams

TokenIds = Sequence[int] | npt.NDArray[np.int64]  # an array spares long histories a conversion


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One request at one position. The docstring of sampler.py says what the fields mean."""

    params: SamplingParams
    position: int
    name: str = ""
    token_ids: TokenIds = ()
    num_prompt: int = 0
    stop_token_ids: Collection[int] = ()
    allowed: Tensor | None = None

    @property
    def barred(self) -> Collection[int]:
        """Tokens that would end the request too early."""
        return self.stop_token_ids if self.position - self.num_prompt < self.params.min_tokens else ()

    @property
    def is_plain(self) -> bool:
        """Whether the token is the model's likeliest, and nothing else is asked for."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The token of one row; -1 where `error` says why none could be drawn."""

    token_id: int
    logprobs: TokenLogprobs | None = None  # where params.logprobs asks for them
    error: str | None = None
    is_refused: bool = False  # the request itself leaves none; else the logits are at fault
