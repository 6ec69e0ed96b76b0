"""One request and its answer: what came, and when.

Definitions are llama-benchy's. Times are seconds on the client's clock.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

CONTENT, REASONING = ("content",), ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    start_s: float
    end_s: float
    status: int | None = None  # of HTTP; None if no answer came
    error: str = ""  # empty if the answer is complete
    error_kind: str = ""  # as in wire.RequestFailed
    first_response_s: float | None = None  # the first chunk with a choice, even an empty one
    first_token_s: float | None = None  # the first chunk with text
    chunk_times_s: tuple[float, ...] = ()  # of chunks with text
    token_times_s: tuple[float, ...] = ()  # tokens of one chunk are spread evenly since the previous chunk
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    counted_by: str = ""  # how output tokens were counted: "token_ids", "usage" or "chunks"
    finish_reason: str | None = None
    content: str = ""
    reasoning: str = ""

    @property
    def is_whole(self) -> bool:
        return not self.error

    @property
    def ttfr_s(self) -> float | None:
        """Time to the first response."""
        return None if self.first_response_s is None else self.first_response_s - self.start_s

    @property
    def ttft_s(self) -> float | None:
        """Time to the first text, as a user sees it."""
        return None if self.first_token_s is None else self.first_token_s - self.start_s

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def decode_s(self) -> float:
        return self.token_times_s[-1] - self.token_times_s[0] if self.token_times_s else 0.0

    @property
    def decode_tokens(self) -> int:
        """The tokens after the first moment, which belongs to the prompt's own step."""
        return sum(time > self.token_times_s[0] for time in self.token_times_s)

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per token after the first."""
        return self.decode_s / self.decode_tokens if self.decode_tokens else None

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Times between chunks with text: the inter-token latency that a user sees."""
        return tuple(later - earlier for earlier, later in itertools.pairwise(self.chunk_times_s))


@dataclass(slots=True, kw_only=True)
class StreamReader:
    """Collects the chunks of a stream as they arrive and builds an Exchange."""

    start_s: float
    first_response_s: float | None = None
    times_s: list[float] = field(default_factory=list)
    counts: list[int | None] = field(default_factory=list)  # tokens per chunk; None if the chunk has no ids
    usage: dict[str, Any] = field(default_factory=dict)
    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    is_done: bool = False

    def add(self, chunk: dict[str, Any], time_s: float) -> None:
        if isinstance(chunk.get("usage"), dict):
            self.usage = chunk["usage"]
        for choice in (chunk.get("choices") or ())[:1]:
            self._add_choice(choice, time_s)

    def _add_choice(self, choice: dict[str, Any], time_s: float) -> None:
        if self.first_response_s is None:
            self.first_response_s = time_s
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {}
        content, reasoning = (_first_text(delta, names) for names in (CONTENT, REASONING))
        if content or reasoning:
            self.content += content
            self.reasoning += reasoning
            self.times_s.append(time_s)
            token_ids = choice.get("token_ids")
            self.counts.append(len(token_ids) if isinstance(token_ids, list) else None)

    @property
    def num_tokens(self) -> int:
        """Tokens so far; a chunk without ids counts as one."""
        return sum(1 if count is None else count for count in self.counts)

    def finish(self, end_s: float, *, status: int | None, error: str = "", error_kind: str = "") -> Exchange:
        token_times, counted_by = self._time_tokens()
        details = self.usage.get("prompt_tokens_details") or {}
        return Exchange(
            start_s=self.start_s,
            end_s=end_s,
            status=status,
            error=error,
            error_kind=error_kind,
            first_response_s=self.first_response_s,
            first_token_s=self.times_s[0] if self.times_s else None,
            chunk_times_s=tuple(self.times_s),
            token_times_s=tuple(token_times),
            prompt_tokens=self.usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            output_tokens=len(token_times) or int(self.usage.get("completion_tokens") or 0),
            counted_by=counted_by,
            finish_reason=self.finish_reason,
            content=self.content,
            reasoning=self.reasoning,
        )

    def _time_tokens(self) -> tuple[list[float], str]:
        """Uses the ids in each chunk; else usage's count, spread over all chunks; else one token per chunk."""
        if not self.times_s:
            return [], ""
        if all(count is not None for count in self.counts):
            return self._spread_over_chunks(), "token_ids"
        total = self.usage.get("completion_tokens")
        if not isinstance(total, int):
            return list(self.times_s), "chunks"
        first, last = self.times_s[0], self.times_s[-1]
        return [first + (last - first) * number / max(total - 1, 1) for number in range(total)], "usage"

    def _spread_over_chunks(self) -> list[float]:
        times: list[float] = []
        for time_s, count in zip(self.times_s, self.counts, strict=True):
            before, total = times[-1] if times else self.times_s[0], count or 0
            times += [before + (time_s - before) * (number + 1) / total for number in range(total)]
        return times


def _first_text(delta: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((delta[name] for name in names if isinstance(delta.get(name), str) and delta[name]), "")
