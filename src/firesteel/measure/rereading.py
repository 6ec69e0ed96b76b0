"""Generated texts read again in one piece: how likely was each of their tokens? Can open no engine.

A greedy token of a right engine is the likeliest when the same text is read at once, or nearly: in bf16 a sum may
be rounded otherwise. Unlike a second run, which goes its own way after the first difference, every token counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.measure.runs import RunsRequests
from firesteel.types import Request, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """Nats between the likeliest token and the generated one, of all tokens; 0 where it is the likeliest."""

    gaps: tuple[float, ...]

    @property
    def likeliest_share(self) -> float:
        return sum(gap == 0 for gap in self.gaps) / len(self.gaps)

    @property
    def mean_gap(self) -> float:
        return sum(self.gaps) / len(self.gaps)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": len(self.gaps), "likeliest_share": self.likeliest_share, "mean_gap_nats": self.mean_gap,
            "largest_gap_nats": max(self.gaps),
        }  # fmt: skip


def read_again(engine: RunsRequests, requests: Sequence[Request], tokens: Mapping[str, Sequence[int]]) -> Reread:
    """Each request's prompt and tokens as one prompt, alone."""
    gaps: list[float] = []
    for request in requests:
        generated = tokens[request.request_id]
        text = [*request.token_ids, *generated]
        params = SamplingParams(max_tokens=1, prompt_logprobs=1)
        engine.submit(Request(request_id=f"{request.request_id} again", token_ids=text, params=params))
        found = []
        while engine.has_work:
            found += [one for output in engine.step() for one in output.prompt_logprobs or ()]
        gaps += [one.top[0][1] - one.logprob for one in found[-len(generated) :]]
    return Reread(gaps=tuple(gaps))
