"""Rescoring: generated texts are submitted again as prompts, and the likelihood of each token is checked.

A greedy token of a correct engine is the most likely one when the same text is scored as a prompt, alone, or nearly
so: in bf16 a sum may be rounded differently. A second run would diverge after the first difference; here every
token counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from firesteel.config import Config
from firesteel.device import DeviceSpec
from firesteel.engine.cache.kv_cache import find_dtype
from firesteel.errors import UserError
from firesteel.measure.tokens.runs import RunsRequests
from firesteel.types import Request, SamplingParams, StepOutput

LARGEST_GAP = 1e-3  # nats per token, if everything is computed and stored in float32
LARGEST_MEAN_GAP = 0.5  # nats, otherwise; correct tokens of 36 random layers in bf16 reach hundredths


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """Nats between the most likely token and the generated one, per token; 0 if they are the same."""

    gaps: tuple[float, ...]

    @property
    def likeliest_share(self) -> float:
        return sum(gap == 0 for gap in self.gaps) / len(self.gaps)

    @property
    def mean_gap(self) -> float:
        return sum(self.gaps) / len(self.gaps)

    def find_fault(self, *, is_rounded: bool) -> str | None:
        """Returns why the tokens are wrong, or None; `is_rounded` says that not everything is float32."""
        if is_rounded and not self.mean_gap < LARGEST_MEAN_GAP:
            gap = f"{self.mean_gap:.2f} nats behind the most likely on average"
            return f"{gap}; rounding explains {LARGEST_MEAN_GAP:g}"
        if not is_rounded and not all(gap < LARGEST_GAP for gap in self.gaps):
            return f"up to {max(self.gaps):.3g} nats behind the most likely; float32 explains {LARGEST_GAP:g}"
        return None

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": len(self.gaps),
            "likeliest_share": self.likeliest_share,
            "mean_gap_nats": self.mean_gap,
            "largest_gap_nats": max(self.gaps),
        }


def is_rounded(device: DeviceSpec, config: Config) -> bool:
    """Returns true unless activations, keys and values are all float32."""
    stored = find_dtype(config.cache.kv_dtype, device)
    return {device.dtype, stored} != {torch.float32} or config.kernels.activation != "bf16"


def rescore(engine: RunsRequests, requests: Sequence[Request], tokens: Mapping[str, Sequence[int]]) -> Rescored:
    """Scores the prompt and tokens of each request as a prompt, alone. Raises unless every token is scored."""
    gaps: list[float] = []
    for request in requests:
        generated = tokens[request.request_id]
        gaps += _score_text(engine, request.request_id, [*request.token_ids, *generated])[-len(generated) :]
    return Rescored(gaps=tuple(gaps))


def _score_text(engine: RunsRequests, name: str, text: Sequence[int]) -> list[float]:
    """Returns the gaps of all tokens except the first, which has no context."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    engine.submit(Request(request_id=f"{name} again", token_ids=text, params=params))
    outputs: list[StepOutput] = []
    while engine.has_work:
        outputs += engine.step()
    scores = [logprobs for output in outputs for logprobs in output.prompt_logprobs or ()]
    if len(scores) != len(text) - 1:
        errors = [output.error for output in outputs if output.error is not None]
        raise UserError(
            f"request {name}: rescoring gave logprobs of {len(scores)} of {len(text) - 1} tokens"
            + "".join(f": {error}" for error in errors)
        )
    return [logprobs.top[0][1] - logprobs.logprob for logprobs in scores]
