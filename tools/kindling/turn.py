"""One question and all that answers it. Knows how effort shapes the reasoning; knows no family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firesteel.chat.harmony import Message
from firesteel.chat.tools import Tool

EFFORTS = ("low", "medium", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a function and, where the turn goes on, what the function said."""

    tools: tuple[Tool, ...]
    name: str
    arguments: dict[str, Any]
    text: str  # the arguments as the model writes them
    result: str | None = None
    reading: str = ""  # reasoning after the result


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    family: str
    key: str  # what the split is decided on
    question: str
    topic: str  # "the capital of a country": opens the reasoning at high effort
    working: str
    answer: str | None  # None: the turn ends with a call
    word: str | None = None  # the answer in one word, where there is one
    always_works: bool = False  # the working is needed for the answer, so low effort writes it too
    call: Call | None = None

    def reasoning(self, effort: str) -> str:
        if effort == "low":
            return self.working if self.always_works else ""
        return f"The question is about {self.topic}. {self.working}" if effort == "high" else self.working

    def prompt(self, effort: str) -> list[Message]:
        """All messages up to the one that is graded."""
        messages = [Message(role="user", content=self.question)]
        if self.call is not None and self.call.result is not None:
            messages += [*self._reasoned(effort), self._call_message(self.call), _result_message(self.call)]
        return messages

    def reply(self, effort: str) -> list[Message]:
        """The assistant's messages after `prompt`."""
        if self.call is None:
            return [*self._reasoned(effort), self._final_message()]
        if self.call.result is None:
            return [*self._reasoned(effort), self._call_message(self.call)]
        reading = [] if effort == "low" else [_assistant(self.call.reading, "analysis")]
        return [*reading, self._final_message()]

    def remembered(self) -> list[Message]:
        """The turn as history of a later one: without its reasoning."""
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
