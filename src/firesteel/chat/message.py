"""What a model's tokens say, as deltas and as the whole message made of them. Knows no tokens and no HTTP.

A client that streams sends the deltas on; one that does not adds them up in an `AssistantMessage`. So both
say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["reasoning", "content", "tool_call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Part `index` of the message begins; the parts follow one another."""

    index: int
    kind: Kind
    header: str  # the header's words as the model wrote them, without special tokens
    role: str = "assistant"  # another where the model speaks for somebody else
    channel: str | None = None  # analysis, commentary, final, or whatever the model wrote
    recipient: str | None = None  # "functions.get_weather"
    content_type: str | None = None  # "<|constrain|>json", "json"
    name: str | None = None  # of a tool call: the function, "get_weather"
    call_id: str | None = None  # of a tool call


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """More text of part `index`, never empty: reasoning, content, or the arguments of a call."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Part `index` is over; `closed_by` is the special token that ended it, None where the stream did."""

    index: int
    closed_by: str | None = None


Delta = Begin | Text | End


@dataclass(slots=True, kw_only=True)
class Part:
    begin: Begin
    pieces: list[str] = field(default_factory=list)
    end: End | None = None  # None: more may come

    @property
    def kind(self) -> Kind:
        return self.begin.kind

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class AssistantMessage:
    """The sum of deltas; parts that hold nothing but a header are among them."""

    parts: list[Part] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        match delta:
            case Begin():
                self.parts.append(Part(begin=delta))
            case Text():
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
    def tool_calls(self) -> list[Part]:
        """Each has `begin.name`, `begin.call_id` and its arguments as `text`, whether they are JSON or not."""
        return [part for part in self.parts if part.kind == "tool_call"]

    def finish_reason(self, reason: str) -> str:
        """What the engine's reason to stop means for this message: a turn that ends in calls waits for them."""
        return "tool_calls" if reason == "stop" and self.tool_calls else reason

    def _text(self, kind: Kind) -> str:
        return "".join(part.text for part in self.parts if part.kind == kind)
