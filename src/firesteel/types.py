"""Types that cross the borders between parts of the program.

Shape letters: T tokens, R requests, Q query heads, K kv heads, D head dim, V vocabulary, P pages, S page size.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from firesteel.errors import RequestError, UserError
from firesteel.sampling_rules import SAMPLING_RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Settings of a continuation. Temperature 0 is greedy; equal seeds give equal tokens.

    Order: repetition, frequency and presence penalties, logit bias, forbidden and allowed tokens, temperature,
    top-k, top-p of what top-k left, min-p, draw. Logprobs are those of the model before all of these.
    """

    max_tokens: int = 128
    min_tokens: int = 0  # number of tokens before which stop tokens cannot be drawn
    temperature: float = 0.0
    top_k: int = 0  # draw from the k most likely tokens; 0 and -1: all
    top_p: float = 1.0  # draw from the most likely tokens that together have this probability
    min_p: float = 0.0  # draw from tokens at least this fraction as likely as the most likely one
    repetition_penalty: float = 1.0  # divides positive, multiplies negative logits of prompt and new tokens
    presence_penalty: float = 0.0  # subtracted from the logit of every token generated before
    frequency_penalty: float = 0.0  # the same, once per time that it was generated
    logit_bias: dict[int, float] = field(default_factory=dict)  # token id -> number added to its logit
    allowed_token_ids: tuple[int, ...] | None = None  # only these may be drawn; None: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences of which the last token cannot follow the others
    grammar: str | None = None  # Lark grammar of the new tokens, see chat/grammar.py; None: any tokens
    seed: int = 0  # modulo 2^64
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()  # in addition to those of the checkpoint
    ignore_eos: bool = False
    logprobs: int | None = None  # number of most likely tokens listed beside each new one; None: no logprobs
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    cache_prompt: bool = True  # reuse and keep keys and values; off computes all of the prompt and keeps nothing

    def __post_init__(self) -> None:
        for name, (is_valid, rule) in SAMPLING_RULES.items():
            value = getattr(self, name)
            if not is_valid(value):
                raise UserError(f"{name} = {value!r}: must be {rule}")
        if self.min_tokens > self.max_tokens:
            raise UserError(f"min_tokens = {self.min_tokens}: must not exceed max_tokens = {self.max_tokens}")

    @property
    def has_penalties(self) -> bool:
        """True if the logits of tokens depend on how often they occurred."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def reads_tokens(self) -> bool:
        """True if the draw depends on the tokens before it."""
        return self.has_penalties or any(len(word) > 1 for word in self.bad_words)

    @property
    def leaves_out(self) -> bool:
        """True if unlikely tokens cannot be drawn."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def stop_ids(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        """Returns all tokens that end the text, given those of the checkpoint."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else frozenset(eos_token_ids))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises for token ids that the model does not have; to be called before the first draw."""
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            token_ids = getattr(self, name)
            if token_ids and max(token_ids) >= vocab_size:
                odd = next(token for token in token_ids if token >= vocab_size)
                raise UserError(f"{name}: token id {odd} is outside the vocabulary of {vocab_size}")
        if odd_ids := [token for word in self.bad_words for token in word if token >= vocab_size]:
            raise UserError(f"bad_words: token id {odd_ids[0]} is outside the vocabulary of {vocab_size}")


class TokenMask(Protocol):
    """The tokens that a grammar allows next."""

    def allowed(self, token_ids: Sequence[int]) -> Tensor | None:
        """Returns bool [V] after the generated `token_ids`; None allows every token."""

    def is_ready(self, token_ids: Sequence[int]) -> bool:
        """Returns whether `allowed` can answer at once. A step does not wait for a mask that is not ready."""

    def count_allowed(self, token_ids: Sequence[int], draft_ids: Sequence[int]) -> int:
        """Returns how many first `draft_ids` the grammar allows after `token_ids`, 0 if that takes too long."""

    def allowed_along(self, token_ids: Sequence[int], draft_ids: Sequence[int]) -> Sequence[Tensor | None]:
        """Returns `allowed` after `token_ids` and after each of `draft_ids`, which the grammar allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to continue, or to score: then its logits are returned and nothing is generated."""

    request_id: str
    token_ids: Sequence[int]
    params: SamplingParams
    stops: frozenset[int] = frozenset()  # tokens that end it
    mask: TokenMask | None = None
    score: bool = False
    cache_salt: str = ""  # cached pages are shared only by requests with equal salts
    arrival: float = field(default_factory=time.monotonic)

    @property
    def num_prompt(self) -> int:
        return len(self.token_ids)

    @property
    def wants_prompt_logits(self) -> bool:
        return self.score or self.params.prompt_logprobs is not None

    @property
    def needs_tokens(self) -> bool:
        """True if its next draw depends on earlier tokens that the host must have read."""
        return self.mask is not None or self.params.reads_tokens

    @property
    def max_new(self) -> int:
        return 0 if self.score else self.params.max_tokens

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises for token ids that the model does not have: on a GPU they would crash the process."""
        if len(self.token_ids) and not 0 <= min(self.token_ids) <= max(self.token_ids) < vocab_size:
            odd = next(token for token in self.token_ids if not 0 <= token < vocab_size)
            raise RequestError(
                f"request {self.request_id}: token id {odd} is outside the vocabulary of {vocab_size}"
            )
        self.params.check_vocabulary(vocab_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens start to end of one request, to be computed in this step."""

    request: Request
    token_ids: Sequence[int]  # prompt and generated tokens
    start: int
    end: int
    full_pages: Sequence[int]  # page of each S tokens, from the first token on
    window_pages: Sequence[int]  # entries before the window are stale
    num_logits: int  # number of last tokens of the span whose logits are wanted
    draft_ids: Sequence[int] = ()  # tokens computed after those, of which the next draws may equal the first ones

    @property
    def num_tokens(self) -> int:
        return self.end - self.start + len(self.draft_ids)

    @property
    def samples(self) -> bool:
        """True if the next token is drawn after it."""
        return self.end == len(self.token_ids) and not self.request.score


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The spans that one step computes. Their lists belong to the scheduler and are valid until the commit."""

    spans: list[Span]

    @property
    def num_tokens(self) -> int:
        return sum(span.num_tokens for span in self.spans)

    @property
    def has_drafts(self) -> bool:
        return any(span.draft_ids for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probability of a token, and of the most likely tokens at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), the most likely first; ties by the lower id


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanResult:
    """The result of a span's logits: the token drawn and logprobs, or the reason why no token could be drawn."""

    token_id: int | None = None  # drawn after the last token of the span; None if nothing was drawn
    logprobs: TokenLogprobs | None = None  # of the token drawn, if params.logprobs asks for them
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the prompt tokens that follow the span's logits
    logits: Tensor | None = None  # of a request to score
    error: str | None = None
    is_refused: bool = False  # the request itself leaves no token to draw; else the logits are invalid
    following: Sequence[SpanResult] = ()  # drawn after the drafted tokens that were accepted, one per such token


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStatistics:
    """Times and token counts of a finished request."""

    queue_s: float  # from arrival to the first step it took part in
    first_token_s: float  # from arrival to the first token
    token_s: float  # between later tokens, on average
    prompt_tokens: int
    cached_tokens: int  # prompt tokens found in the cache, not computed
    output_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The output of one step for one request; a step that accepted drafted tokens has an output per token."""

    request_id: str
    token_ids: list[int]  # new ones
    finish_reason: str | None  # "stop", "length", "refused" or "error"
    num_cached: int  # prompt tokens found in the cache
    logprobs: TokenLogprobs | None = None  # of the new token, if requested
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the next prompt tokens, from the second on
    logits: Tensor | None = None  # [.., V] fp32 of a request to score
    error: str | None = None  # the cause if the reason is "refused" (the request's own limits) or "error" (ours)
    statistics: RequestStatistics | None = None  # with the last output


@dataclass(frozen=True, slots=True, kw_only=True)
class KvView:
    """The places of a batch's tokens in the pages of one kind of layer (full or window)."""

    page_table: Tensor  # [R, N] int64, page of each S tokens; entries before the window may be stale
    slots: Tensor  # [T] int64, page * S + offset of each new token


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The tokens of one step, request after request; rows of request r are query_starts[r]:query_starts[r+1]."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    query_starts: Tensor  # [R+1] int64
    kv_lens: Tensor  # [R] int64, tokens held after this step, the new ones included
    full: KvView
    window: KvView
    logit_rows: Tensor  # [L] int64, rows whose logits are wanted
    num_tokens: Tensor | None = None  # [1] int64: rows from there on are padding; None: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """Copies of a step's residuals between layers, which drafters of speculative decoding read.

    Boundary n is the residual that layer n reads, before its norm; the number of layers is the residual after the
    last one, before the final norm.
    """

    boundaries: tuple[int, ...]
    rows: Tensor  # [T, len(boundaries) * H], written by the step

    def keep(self, boundary: int, residual: Tensor) -> None:
        """Copies the residual [T, H] if `boundary` is one of ours."""
        width = residual.shape[-1]
        for place, ours in enumerate(self.boundaries):
            if ours == boundary:
                self.rows[: len(residual), place * width : (place + 1) * width].copy_(residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvScales:
    """Divisors of keys and values when they are stored, one number per layer each."""

    keys: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Keys and values in pages, one pair of tensors per layer, HND: [P, K, S, D].

    A window layer and a full layer may share a pair: each page is then used by one kind of layer.
    """

    keys: list[Tensor]
    values: list[Tensor]
    saturated: Tensor | None = None  # [1] int64, values clipped to E4M3's range so far; None: wider pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The continuation of a prompt."""

    token_ids: list[int]
    text: str
    finish_reason: str  # "stop" or "length"
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one per token, if requested
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # one per prompt token from the second on
    num_cached: int = 0  # prompt tokens found in the cache
