"""Turns pieces of a model's turn into the content blocks and events of a message.

Whole answers are built from the same events as streams, so both are equal.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from firesteel.chat.message import Begin, End, TextDelta, join_texts
from firesteel.server.anthropic.answers import (
    AnswerBlock,
    AnthropicMessage,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputPiece,
    MessageEnd,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageUpdate,
    MessageUsage,
    Ping,
    SignaturePiece,
    StopReason,
    TextAnswer,
    TextPiece,
    ThinkingAnswer,
    ThinkingCount,
    ThinkingPiece,
    ToolUseAnswer,
)
from firesteel.server.anthropic.signature import sign
from firesteel.server.generate.choice import Choice, ChoicePiece

log = logging.getLogger(__name__)
Showing = Literal["shown", "omitted", "hidden"]  # hidden: without its block; omitted: a block without its text
MALFORMED = "malformed_arguments"  # the only field of a call's input if the model did not write a JSON object


class MessageWriter:
    """Writes one message. Each method returns the events that follow the earlier ones, in order."""

    def __init__(self, message: AnthropicMessage, thinking: Showing) -> None:
        self.message = message
        self._thinking = thinking
        self._begun: Begin | None = None  # the open part
        self._texts: list[str] = []  # of the open part
        self._is_started = False  # whether the open part has a block
        self._last = ChoicePiece()
        self._events: list[MessageEvent] = []

    def begin(self, usage: MessageUsage) -> list[MessageEvent]:
        self.message.usage = usage
        return [MessageStart(message=replace(self.message)), Ping()]

    def push(self, piece: ChoicePiece) -> list[MessageEvent]:
        for delta in join_texts(piece.deltas):
            match delta:
                case Begin():
                    self._close()
                    self._begun = delta
                    if delta.kind == "tool_call":
                        self._start(delta)
                case TextDelta():
                    self._write(delta.text)
                case End():
                    self._close()
        self._last = piece
        return self._take()

    def finish(self, usage: MessageUsage, *, is_context_full: bool) -> list[MessageEvent]:
        """Ends the message; `is_context_full` if fewer tokens fitted than were requested."""
        self._close()
        self.message.usage = usage
        self.message.stop_reason = find_stop_reason(self._last, is_context_full=is_context_full)
        self.message.stop_sequence = self._last.stop_reason
        end = MessageEnd(stop_reason=self.message.stop_reason, stop_sequence=self.message.stop_sequence)
        self._events += [MessageUpdate(delta=end, usage=usage), MessageStop()]
        return self._take()

    @property
    def _index(self) -> int:
        return len(self.message.content)

    def _start(self, begin: Begin) -> None:
        self._is_started = True
        self._events.append(BlockStart(index=self._index, content_block=open_block(begin)))

    def _write(self, text: str) -> None:
        begin = self._begun
        assert begin is not None
        if begin.kind == "reasoning" and self._thinking == "hidden":
            return
        if not self._is_started:
            self._start(begin)
        self._texts.append(text)
        if begin.kind == "reasoning" and self._thinking == "omitted":
            return
        delta: Any
        match begin.kind:
            case "reasoning":
                delta = ThinkingPiece(thinking=text)
            case "content":
                delta = TextPiece(text=text)
            case "tool_call":
                delta = InputPiece(partial_json=text)
        self._events.append(BlockDelta(index=self._index, delta=delta))

    def _close(self) -> None:
        begin, self._begun = self._begun, None
        is_started, self._is_started = self._is_started, False
        text, self._texts = "".join(self._texts), []
        if begin is None or not is_started:
            return
        block = close_block(begin, text, is_shown=self._thinking == "shown")
        if isinstance(block, ThinkingAnswer):
            self._events.append(BlockDelta(index=self._index, delta=SignaturePiece(signature=block.signature)))
        self._events.append(BlockStop(index=self._index))
        self.message.content = [*self.message.content, block]

    def _take(self) -> list[MessageEvent]:
        taken, self._events = self._events, []
        return taken


def open_block(begin: Begin) -> AnswerBlock:
    match begin.kind:
        case "reasoning":
            return ThinkingAnswer(thinking="", signature="")
        case "tool_call":
            return ToolUseAnswer(id=begin.call_id or "", name=begin.name or "", input={})
    return TextAnswer(text="")


def close_block(begin: Begin, text: str, *, is_shown: bool) -> AnswerBlock:
    match begin.kind:
        case "reasoning":
            return ThinkingAnswer(thinking=text if is_shown else "", signature=sign(text, is_shown=is_shown))
        case "tool_call":
            return ToolUseAnswer(id=begin.call_id or "", name=begin.name or "", input=read_arguments(text))
    return TextAnswer(text=text)


def read_arguments(text: str) -> dict[str, Any]:
    """Returns the input of a call. A model may write text that is not a JSON object; nothing of it is lost."""
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        log.info("arguments of a call are not a JSON object")
        return {MALFORMED: text}


def find_stop_reason(last: ChoicePiece, *, is_context_full: bool) -> StopReason:
    match last.finish_reason:
        case "length":
            return "model_context_window_exceeded" if is_context_full else "max_tokens"
        case "tool_calls":
            return "tool_use"
        case "content_filter":
            return "refusal"
    return "end_turn" if last.stop_reason is None else "stop_sequence"


def count_usage(choice: Choice) -> MessageUsage:
    return MessageUsage(
        input_tokens=choice.num_prompt - choice.num_cached,
        cache_read_input_tokens=choice.num_cached,
        output_tokens=choice.num_output,
        output_tokens_details=ThinkingCount(thinking_tokens=choice.num_reasoning),
    )
