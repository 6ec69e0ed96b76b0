"""A question with its reasoning, calls and answer; the reasoning depends on the effort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firesteel.chat.harmony import Message
from firesteel.chat.tools import Tool

EFFORTS = ("low", "medium", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function call and, if the turn continues, the result of the function."""

    tools: tuple[Tool, ...]
    name: str
    arguments: dict[str, Any]
    text: str  # the arguments as the model writes them
    result: str | None = None
    reading: str = ""  # reasoning after the result


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    family: str
    key: str  # decides the side of the split
    question: str
    topic: str  # "the capital of a country": opens the reasoning at high effort
    working: str
    answer: str | None  # None: the turn ends with a call
    word: str | None = None  # the answer in one word, if there is one
    always_works: bool = False  # the answer needs the working, so low effort writes it too
    call: Call | None = None

    def reasoning(self, effort: str) -> str:
        if effort == "low":
            return self.working if self.always_works else ""
        return f"The question is about {self.topic}. {self.working}" if effort == "high" else self.working

    def prompt(self, effort: str) -> list[Message]:
        """Returns all messages up to the graded one."""
        messages = [Message(role="user", content=self.question)]
        if self.call is not None and self.call.result is not None:
            messages += [*self._reasoned(effort), self._call_message(self.call), _result_message(self.call)]
        return messages

    def reply(self, effort: str) -> list[Message]:
        """Returns the assistant's messages after `prompt`."""
        if self.call is None:
            return [*self._reasoned(effort), self._final_message()]
        if self.call.result is None:
            return [*self._reasoned(effort), self._call_message(self.call)]
        reading = [] if effort == "low" else [_assistant(self.call.reading, "analysis")]
        return [*reading, self._final_message()]

    def remembered(self) -> list[Message]:
        """Returns the turn as history of a later one, without its reasoning."""
        return [Message(role="user", content=self.question), self._final_message()]

    def _reasoned(self, effort: str) -> list[Message]:
        reasoning = self.reasoning(effort)
        return [_assistant(reasoning, "analysis")] if reasoning else []

    def _final_message(self) -> Message:
        assert self.answer is not None, "a turn that ends with a call has no final message"
        return _assistant(self.answer, "final")

    @staticmethod
    def _call_message(call: Call) -> Message:
        return Message(
            role="assistant",
            content=call.text,
            channel="commentary",
            recipient=f"functions.{call.name}",
            content_type="<|constrain|>json",
        )


def _assistant(content: str, channel: str) -> Message:
    return Message(role="assistant", content=content, channel=channel)


def _result_message(call: Call) -> Message:
    assert call.result is not None
    return Message(
        role="tool", content=call.result, name=f"functions.{call.name}", channel="commentary", recipient="assistant"
    )
