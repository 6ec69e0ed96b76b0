"""Samples a plan's spans: draws the next tokens and scores prompts from the logits of one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from firesteel.engine.sample.logprobs import Logprobs, score
from firesteel.engine.sample.pending import PendingTokens
from firesteel.engine.sample.row import SampleRow
from firesteel.engine.sample.sampler import Sampler
from firesteel.engine.transfer import Download, upload_ints
from firesteel.types import Plan, Span, SpanResult, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSpans:
    """The results of a plan's spans, on their way from the device."""

    spans: list[Span]  # those whose logits are wanted
    pieces: Sequence[Tensor]  # their logits
    scored: list[Download | None]  # logprobs of prompt tokens, as `Logprobs.tensors`
    token_ids: Tensor | None  # int64 on the device: the tokens drawn, in the order of `make_rows`; None if none is
    drawn: PendingTokens | None

    @classmethod
    def begin(cls, sampler: Sampler, plan: Plan, logits: Tensor) -> PendingSpans:
        """Launches everything and waits for nothing."""
        spans = [span for span in plan.spans if span.num_logits]
        pieces = logits.split([span.num_logits for span in spans]) if spans else ()
        drawing = [(span, piece) for span, piece in zip(spans, pieces, strict=True) if span.samples]
        sampled = None
        if drawing:
            rows = [row for span, _ in drawing for row in make_rows(span)]
            if len(rows) != len(logits):
                logits = torch.cat([piece[-1 - len(span.draft_ids) :] for span, piece in drawing])
            sampled = sampler.sample(logits, rows)
        return cls(
            spans=spans,
            pieces=pieces,
            scored=[
                _score_prompt(span, piece, sampler.rows_scored) for span, piece in zip(spans, pieces, strict=True)
            ],
            token_ids=None if sampled is None else sampled.token_ids,
            drawn=None if sampled is None else sampled.fetch(),
        )

    @property
    def waits(self) -> bool:
        """True if `read` waits: nothing is read of a piece of a prompt that is neither the last one nor scored."""
        return self.drawn is not None or any(scored is not None for scored in self.scored)

    def read(self) -> list[SpanResult]:
        """Returns a result per span; waits for this plan, not for steps launched after it."""
        drawn = iter(self.drawn.read() if self.drawn is not None else ())
        parts = zip(self.spans, self.pieces, self.scored, strict=True)
        return [_join_result(span, piece, prompt, drawn) for span, piece, prompt in parts]


def make_rows(span: Span) -> list[SampleRow]:
    """Returns what the sampler must know to draw the token after the span and after each of its drafted tokens."""
    request, drafts = span.request, span.draft_ids
    masks: Sequence[Tensor | None] = [None] * (1 + len(drafts))
    if request.mask is not None:
        drawn = span.token_ids[request.num_prompt :]
        masks = request.mask.allowed_along(drawn, drafts) if drafts else [request.mask.allowed(drawn)]
    return [
        SampleRow(
            params=request.params,
            position=span.end + count,
            name=f"request {request.request_id}",
            token_ids=_follow(span, count),
            num_prompt=request.num_prompt,
            stop_token_ids=request.stops,
            allowed=allowed,
        )
        for count, allowed in enumerate(masks)
    ]


def _follow(span: Span, count: int) -> Sequence[int]:
    """Returns the span's tokens with the first `count` drafted ones, if the draw reads them."""
    if not count or not span.request.params.reads_tokens:
        return span.token_ids
    return [*span.token_ids, *span.draft_ids[:count]]


def join_drafts(span: Span, results: Iterator[SpanResult]) -> SpanResult:
    """Returns the first of the span's next results, followed by those whose drafted tokens were right.

    A drafted token is right if it is the token drawn in its place. Each row draws as if it was computed alone, with
    the random numbers of its position, so drafts change no token; as a draft is certain of its tokens, this is
    rejection sampling.
    """
    first, *others = islice(results, 1 + len(span.draft_ids))
    accepted, last = 0, first
    for draft, other in zip(span.draft_ids, others, strict=True):
        if last.token_id != draft:
            break
        accepted, last = accepted + 1, other
    return replace(first, following=others[:accepted]) if accepted else first


def _score_prompt(span: Span, logits: Tensor, step: int) -> Download | None:
    """Begins to copy logprobs of the prompt tokens that follow the rows of `logits`, if the request asks for them.

    No prompt token follows the last row of the prompt.
    """
    request = span.request
    if request.params.prompt_logprobs is None:
        return None
    first = span.end - len(logits) + 1
    following = list(span.token_ids[first : min(span.end + 1, request.num_prompt)])
    if not following:
        return None
    num_top, token_ids = request.params.prompt_logprobs, upload_ints(following, logits.device)
    return Download(*score(logits[: len(following)], token_ids, num_top, step).tensors())


def _join_result(span: Span, logits: Tensor, scored: Download | None, drawn: Iterator[SpanResult]) -> SpanResult:
    """Returns the next drawn token if the span samples, with the prompt's logprobs and logits if requested."""
    result = join_drafts(span, drawn) if span.samples else SpanResult()
    if scored is None and not span.request.score:
        return result
    return replace(
        result,
        prompt_logprobs=None if scored is None else _read_scores(scored, span.request.params.prompt_logprobs or 0),
        logits=logits if span.request.score else None,
    )


def _read_scores(scored: Download, num_top: int) -> list[TokenLogprobs]:
    logprobs = Logprobs.of(scored.read())
    return logprobs.read([num_top] * len(logprobs.token_ids))
