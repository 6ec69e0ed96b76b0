"""Interface of a partner in a terminal chat, and the pieces of its answers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

Turn = dict[str, str]  # role and content, as in chat completions


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """Options of an answer; None: the partner's default."""

    effort: str | None = None  # low, medium, high
    max_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPiece:
    """One piece of an answer: text, reasoning, the token count or the finish reason."""

    content: str = ""
    reasoning: str = ""
    num_tokens: int | None = None  # tokens of the answer so far, if known
    finish_reason: str | None = None


class Partner(Protocol):
    name: str  # the model and where it runs

    def answer(self, turns: list[Turn], options: AnswerOptions) -> Generator[AnswerPiece, None, None]:
        """Yields the answer; closing early ends it. Raises UserError if there is no answer."""
