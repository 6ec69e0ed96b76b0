"""An assistant message, as deltas and as the whole that they add up to.

A streaming endpoint sends the deltas; any other adds them up in a `ParsedMessage`: both give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

Kind = Literal["reasoning", "content", "tool_call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Part `index` of the message begins; parts do not overlap."""

    index: int
    kind: Kind
    header: str  # the header's words as the model wrote them, without special tokens
    role: str = "assistant"  # another role if the model wrote one
    channel: str | None = None  # analysis, commentary, final, or any other word that the model wrote
    recipient: str | None = None  # "functions.get_weather"
    content_type: str | None = None  # "<|constrain|>json", "json"
    name: str | None = None  # function of a tool call, "get_weather"
    call_id: str | None = None  # tool calls only


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More text of part `index`, never empty: reasoning, content, or the arguments of a call."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Part `index` is complete; `closed_by` is the special token that ended it, None if the stream ended."""

    index: int
    closed_by: str | None = None


Delta = Begin | TextDelta | End


def join_texts(deltas: Sequence[Delta]) -> Iterator[Delta]:
    """Joins consecutive texts: what arrived together is sent together."""
    for is_text, group in groupby(deltas, lambda delta: isinstance(delta, TextDelta)):
        if is_text:
            texts = [delta for delta in group if isinstance(delta, TextDelta)]
            yield TextDelta(index=texts[0].index, text="".join(delta.text for delta in texts))
        else:
            yield from group


@dataclass(slots=True, kw_only=True)
class MessagePart:
    begin: Begin
    pieces: list[str] = field(default_factory=list)
    end: End | None = None  # None: more text may come

    @property
    def kind(self) -> Kind:
        return self.begin.kind

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class ParsedMessage:
    """An assistant message parsed from tokens: the sum of its deltas, with parts that have only a header."""

    parts: list[MessagePart] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        match delta:
            case Begin():
                self.parts.append(MessagePart(begin=delta))
            case TextDelta():
                self.parts[delta.index].pieces.append(delta.text)
            case End():
                self.parts[delta.index].end = delta

    @property
    def reasoning(self) -> str:
        return self._text("reasoning")

    @property
    def content(self) -> str:
        return self._text("content")

    @property
    def tool_calls(self) -> list[MessagePart]:
        """Parts with `begin.name`, `begin.call_id` and their arguments as `text`, which need not be valid JSON."""
        return [part for part in self.parts if part.kind == "tool_call"]

    def finish_reason(self, reason: str) -> str:
        """Returns the finish reason of this message: "tool_calls" if the engine stopped after tool calls."""
        return "tool_calls" if reason == "stop" and self.tool_calls else reason

    def _text(self, kind: Kind) -> str:
        return "".join(part.text for part in self.parts if part.kind == kind)
