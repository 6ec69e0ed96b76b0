"""Reads messages from a valid stream of Harmony tokens; raises on an invalid one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from firesteel.chat.format import HarmonyError, Marks, Message
from firesteel.chat.header import parse_header
from firesteel.chat.tokenizer import Tokenizer


class StrictReader:
    """A cursor over one stream of tokens."""

    def __init__(self, tokenizer: Tokenizer, marks: Marks, token_ids: Sequence[int]) -> None:
        self._decode = tokenizer.decode
        self._marks = marks
        self._token_ids = token_ids
        self._structure = {getattr(marks, field.name) for field in fields(marks)}
        self.position = 0

    def expect_start(self) -> None:
        if self._token_ids[self.position] != self._marks.start:
            raise HarmonyError("expected <|start|>", self.position)
        self.position += 1

    def read_message(self, role: str | None) -> Message:
        header = self._read_header(role)
        begin, mark = self.position, self._next_mark()
        content = self._decode(self._token_ids[begin : self.position])
        if mark is not None:
            self._close(mark)
        return replace(header, content=content)

    def _close(self, mark: int) -> None:
        marks = self._marks
        if mark not in (marks.end, marks.return_, marks.call, marks.endoftext):
            raise HarmonyError(f"{self._decode([mark])} inside the content of a message", self.position)
        self.position += 1
        if mark == marks.endoftext and self.position < len(self._token_ids):
            raise HarmonyError("the stream continues after <|endoftext|>", self.position)

    def _next_mark(self) -> int | None:
        """Moves to the next structural token and returns it; None at the end of the stream."""
        while self.position < len(self._token_ids):
            if self._token_ids[self.position] in self._structure:
                return self._token_ids[self.position]
            self.position += 1
        return None

    def _read_header(self, role: str | None) -> Message:
        """Reads up to and including `<|message|>`: the author, then what follows `<|channel|>`, `<|constrain|>`."""
        first = self.position
        parts: dict[int, str] = {}
        mark = self._marks.start
        while mark != self._marks.message:
            begin, following = self.position, self._next_mark()
            parts[mark] = self._decode(self._token_ids[begin : self.position])
            if following is None:
                raise HarmonyError("the stream ends inside a header", self.position)
            allowed = {self._marks.message, self._marks.channel, self._marks.constrain} - parts.keys()
            if following not in allowed or (following, mark) == (self._marks.channel, self._marks.constrain):
                raise HarmonyError(f"{self._decode([following])} inside a header", self.position)
            self.position += 1
            mark = following
        try:
            return parse_header(
                role,
                parts[self._marks.start],
                parts.get(self._marks.channel),
                parts.get(self._marks.constrain),
            )
        except HarmonyError as error:
            raise HarmonyError(str(error), first) from None
