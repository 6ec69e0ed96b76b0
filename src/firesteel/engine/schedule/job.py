"""An unfinished request: its tokens and pages, how far it is computed, and its timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.engine.cache.page_tables import PageTable
from firesteel.types import Request, RequestStatistics, Span


@dataclass(slots=True, eq=False)
class Job:
    request: Request
    token_ids: list[int]  # prompt and generated tokens; shared with the table
    table: PageTable
    num_computed: int = 0  # tokens whose keys and values are in the pages
    num_scored: int = 0  # prompt tokens whose logits were returned
    num_cached: int = 0  # prompt tokens found in the cache at its first step
    preemptions: int = 0
    is_running: bool = False
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.request.num_prompt

    @property
    def longest(self) -> int:
        """Maximum number of tokens, prompt and generated."""
        return self.request.num_prompt + self.request.max_new

    @property
    def most_drafted(self) -> int:
        """Most tokens to draft after those present: the last one that it may have is drawn."""
        return self.longest - len(self.token_ids) - 1

    @property
    def is_decoding(self) -> bool:
        return self.num_computed > 0 and len(self.token_ids) - self.num_computed == 1

    @property
    def can_draw(self) -> bool:
        """False while the mask of its next token is being computed."""
        mask = self.request.mask
        return mask is None or mask.is_ready(self.token_ids[self.request.num_prompt :])

    @property
    def is_scoring(self) -> bool:
        """True while logits of its prompt are still wanted."""
        return self.request.wants_prompt_logits and self.num_scored < self.request.num_prompt

    @property
    def most_cached(self) -> int:
        """Maximum tokens to take from the cache: all but the last, and none whose logits are still wanted."""
        if not self.request.params.cache_prompt:
            return 0
        return self.num_scored if self.is_scoring else len(self.token_ids) - 1

    def span(self, end: int, draft_ids: Sequence[int] = ()) -> Span:
        """Returns the span of the next tokens up to `end`, and of drafted ones after the last."""
        pages = list(self.table.pages.values())
        return Span(
            request=self.request,
            token_ids=self.token_ids,
            start=self.num_computed,
            end=end,
            full_pages=pages[0],
            window_pages=pages[-1],
            num_logits=self._count_logits(end) + len(draft_ids),
            draft_ids=draft_ids,
        )

    def _count_logits(self, end: int) -> int:
        if self.is_scoring:
            return max(0, end - max(self.num_computed, self.num_scored))
        return int(end == len(self.token_ids))

    def append(self, token: int, now: float) -> str | None:
        """Appends a drawn token; returns the finish reason if the request ends with it."""
        self.token_ids.append(token)
        self.first_token = self.first_token or now
        self.last_token = now
        if token in self.request.stops:
            return "stop"
        return "length" if self.num_generated >= self.request.max_new else None

    def statistics(self) -> RequestStatistics:
        arrival, count = self.request.arrival, self.num_generated
        first, last = self.first_token or arrival, self.last_token or arrival
        return RequestStatistics(
            queue_s=(self.started or arrival) - arrival,
            first_token_s=first - arrival,
            token_s=(last - first) / (count - 1) if count > 1 else 0.0,
            prompt_tokens=self.request.num_prompt,
            cached_tokens=self.num_cached,
            output_tokens=count,
            preemptions=self.preemptions,
        )
