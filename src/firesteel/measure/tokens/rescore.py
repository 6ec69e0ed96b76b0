"""Generated texts read again as prompts: how likely was each of their tokens? Can open no engine.

A greedy token of a right engine is the likeliest when the same text is read as a prompt, alone, or nearly: in bf16
a sum may be rounded otherwise. Unlike a second run, which goes its own way after the first difference, every token
counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.errors import UserError
from firesteel.measure.tokens.runs import RunsRequests
from firesteel.types import Request, SamplingParams, StepOutput

LARGEST_GAP = 1e-3  # nats, of any token where all is computed and stored in float32
LARGEST_MEAN_GAP = 0.5  # nats, elsewhere: right tokens of 36 random layers in bf16 reach hundredths


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """Nats between the likeliest token and the generated one, of all tokens; 0 where it is the likeliest."""

    gaps: tuple[float, ...]

    @property
    def likeliest_share(self) -> float:
        return sum(gap == 0 for gap in self.gaps) / len(self.gaps)

    @property
    def mean_gap(self) -> float:
        return sum(self.gaps) / len(self.gaps)

    def find_fault(self, *, is_rounded: bool) -> str | None:
        """Why the tokens are wrong, or None; `is_rounded` says that something is not kept in float32."""
        if is_rounded and not self.mean_gap < LARGEST_MEAN_GAP:
            return (
                f"{self.mean_gap:.2f} nats behind the likeliest on average; rounding explains {LARGEST_MEAN_GAP:g}"
            )
        if not is_rounded and not all(gap < LARGEST_GAP for gap in self.gaps):
            return f"up to {max(self.gaps):.3g} nats behind the likeliest; float32 explains {LARGEST_GAP:g}"
        return None

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": len(self.gaps), "likeliest_share": self.likeliest_share, "mean_gap_nats": self.mean_gap,
            "largest_gap_nats": max(self.gaps),
        }  # fmt: skip


def rescore(engine: RunsRequests, requests: Sequence[Request], tokens: Mapping[str, Sequence[int]]) -> Rescored:
    """Each request's prompt and tokens as a prompt, alone. Raises unless every token comes back."""
    gaps: list[float] = []
    for request in requests:
        generated = tokens[request.request_id]
        gaps += _read_text(engine, request.request_id, [*request.token_ids, *generated])[-len(generated) :]
    return Rescored(gaps=tuple(gaps))


def _read_text(engine: RunsRequests, name: str, text: Sequence[int]) -> list[float]:
    """Gaps of all its tokens but the first, which follows nothing."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    engine.submit(Request(request_id=f"{name} again", token_ids=text, params=params))
    outputs: list[StepOutput] = []
    while engine.has_work:
        outputs += engine.step()
    found = [one for output in outputs for one in output.prompt_logprobs or ()]
    if len(found) != len(text) - 1:
        errors = [one.error for one in outputs if one.error is not None]
        raise UserError(
            f"request {name} read again gave logprobs of {len(found)} of {len(text) - 1} tokens"
            + "".join(f": {error}" for error in errors)
        )
    return [one.top[0][1] - one.logprob for one in found]
