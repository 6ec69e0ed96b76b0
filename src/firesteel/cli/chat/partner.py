"""Who answers in a terminal chat, and what an answer is made of; knows neither HTTP nor engines."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

Turn = dict[str, str]  # role and content, as chat completions take them


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How to answer; None leaves it to whoever answers."""

    effort: str | None = None  # low, medium, high
    max_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What came at once: text of the answer, of the reasoning before it, or news of the whole."""

    content: str = ""
    reasoning: str = ""
    num_tokens: int | None = None  # of the whole answer so far, where it is known
    finish_reason: str | None = None


class Partner(Protocol):
    name: str  # of the model and of where it runs

    def answer(self, turns: list[Turn], wishes: Wishes) -> Generator[Piece, None, None]:
        """Closing it early ends the answer. Raises UserError where there is none."""
