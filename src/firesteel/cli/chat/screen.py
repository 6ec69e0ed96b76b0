"""Output of answers while they arrive: the text on stdout, everything else on stderr.

So `firesteel chat < questions > answers` writes only answers to the file.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from firesteel.cli.chat.partner import AnswerPiece
from firesteel.untrusted.printable import escape_lines


@dataclass(slots=True)
class ShownAnswer:
    """An answer so far, with its times."""

    started: float = field(default_factory=time.perf_counter)
    first: float | None = None  # time of the first text
    last: float | None = None
    content: str = ""
    num_pieces: int = 0
    num_tokens: int | None = None
    finish_reason: str | None = None

    def push(self, piece: AnswerPiece) -> None:
        if piece.content or piece.reasoning:
            self.last = time.perf_counter()
            self.first = self.first or self.last
            self.num_pieces += 1
        self.content += piece.content
        self.num_tokens = self.num_tokens if piece.num_tokens is None else piece.num_tokens
        self.finish_reason = piece.finish_reason or self.finish_reason

    def in_words(self) -> str:
        """Describes the tokens and their rate after the first; counts pieces if the server counts no tokens."""
        if self.first is None or self.last is None:
            return "no text"
        count, unit = (self.num_pieces, "pieces") if self.num_tokens is None else (self.num_tokens, "tokens")
        words = [f"{count} {unit}"]
        if count > 1 and self.last > self.first:
            words.append(f"{(count - 1) / (self.last - self.first):.1f} {unit}/s")
        words.append(f"first after {self.first - self.started:.2f} s")
        if self.finish_reason == "length":
            words.append("cut at the maximum number of tokens")
        return ", ".join(words)


class Screen:
    """Escapes control characters: a model's text must not move the cursor, retitle the window or reorder lines."""

    def __init__(self) -> None:
        self._notes = Console(stderr=True, highlight=False)
        self._in_reasoning = False
        self._in_content = False

    def show(self, piece: AnswerPiece) -> None:
        if piece.reasoning:
            self._end_content()
            self._in_reasoning = True
            self._note(piece.reasoning, end="")
        if piece.content:
            self._end_reasoning()
            self._in_content = True
            sys.stdout.write(escape_lines(piece.content))
            sys.stdout.flush()

    def end(self) -> None:
        """Ends an answer, even an empty one: the next output starts a new line."""
        self._end_reasoning()
        self._in_content = True
        self._end_content()

    def note(self, text: str) -> None:
        """Prints a line that is not part of an answer."""
        self._note(text, end="\n")

    def _end_reasoning(self) -> None:
        if self._in_reasoning:
            self._in_reasoning = False
            self._note("", end="\n")

    def _end_content(self) -> None:
        if self._in_content:
            self._in_content = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _note(self, text: str, end: str) -> None:
        self._notes.print(Text(escape_lines(text), style="dim"), end=end, soft_wrap=True)
