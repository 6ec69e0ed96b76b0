"""Turns pieces of a model's turn into the items and events of a response.

Whole answers are built from the same events as streams, so both are equal.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from firesteel.chat.message import Begin, End, TextDelta, join_texts
from firesteel.server.generate.choice import ChoicePiece
from firesteel.server.openai.answers import TokenLogprob
from firesteel.server.responses.answers import (
    ArgumentsDoneEvent,
    CustomCallItem,
    DeltaEvent,
    Event,
    FunctionCallItem,
    IncompleteDetails,
    InputDoneEvent,
    ItemEvent,
    MessageItem,
    OutputItem,
    OutputTextPart,
    PartEvent,
    ReasoningItem,
    ReasoningTextPart,
    Response,
    ResponseEvent,
    ResponseFailure,
    ResponseUsage,
    TextDoneEvent,
)
from firesteel.server.responses.schema import ItemStatus, Phase
from firesteel.server.responses.toolbox import OfferedTool, Toolbox

Spell = Callable[[ChoicePiece], list[TokenLogprob]]


def new_name(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


class OpenItem:
    """An item that is being written."""

    def __init__(self, begin: Begin, place: int, tool: OfferedTool | None) -> None:
        """`tool` is the one that a call names; None if the model made up a name."""
        self.begin = begin
        self.place = place  # index in the output
        self.tool = tool
        self.is_custom = tool is not None and tool.is_custom
        kind = "custom" if self.is_custom else begin.kind
        self.name = new_name({"reasoning": "rs", "content": "msg", "tool_call": "fc", "custom": "ctc"}[kind])
        self.text = ""
        self.logprobs: list[TokenLogprob] = []

    def part(self) -> OutputTextPart | ReasoningTextPart:
        if self.begin.kind == "reasoning":
            return ReasoningTextPart(text=self.text)
        return OutputTextPart(text=self.text, logprobs=list(self.logprobs))

    def item(self, status: ItemStatus) -> OutputItem:
        """Returns the item in its present state; while it is in progress its text is only in the events."""
        begin, is_begun = self.begin, status != "in_progress"
        match begin.kind:
            case "tool_call":
                return self._call(status, self.text if is_begun else "")
            case "reasoning":
                reasoning = [ReasoningTextPart(text=self.text)] if is_begun else []
                return ReasoningItem(id=self.name, status=status, content=reasoning)
        content = [OutputTextPart(text=self.text, logprobs=list(self.logprobs))] if is_begun else []
        phase: Phase = "commentary" if begin.channel == "commentary" else "final_answer"
        return MessageItem(id=self.name, status=status, content=content, phase=phase)

    def _call(self, status: ItemStatus, text: str) -> FunctionCallItem | CustomCallItem:
        tool, begin = self.tool, self.begin
        fields: dict[str, Any] = {
            "id": self.name,
            "status": status,
            "call_id": begin.call_id or "",
            "name": (begin.name or "") if tool is None else tool.name,
            "namespace": UNSET if tool is None else tool.namespace or UNSET,
        }
        if self.is_custom:
            return CustomCallItem(**fields, input=text)
        return FunctionCallItem(**fields, arguments=text)


class ResponseWriter:
    """Writes one response. Each method returns the events that follow the earlier ones, in order."""

    def __init__(self, response: Response, spell: Spell | None = None, toolbox: Toolbox | None = None) -> None:
        """`spell` returns the logprobs of a piece's text; None if they were not requested."""
        self.response = response
        self._toolbox = toolbox or Toolbox()
        self._spell = spell
        self._begun: Begin | None = None  # a part without text so far: it may stay empty
        self._open: OpenItem | None = None
        self._number = 0
        self._events: list[Event] = []
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text was not written yet
        self._is_cut = False

    def begin(self) -> list[Event]:
        self._emit(ResponseEvent, "response.created", response=replace(self.response))
        self._emit(ResponseEvent, "response.in_progress", response=replace(self.response))
        return self._take()

    def push(self, piece: ChoicePiece) -> list[Event]:
        if self._spell is not None:
            self._logprobs += self._spell(piece)
        for delta in join_texts(piece.deltas):
            match delta:
                case Begin():
                    self._close("completed")
                    self._begun = delta
                    if delta.kind == "tool_call":
                        self._start()
                case TextDelta():
                    self._write(delta.text)
                case End():
                    self._close("completed" if delta.closed_by else self._end_status(piece))
        self._is_cut = piece.finish_reason == "length"
        return self._take()

    def finish(self, usage: ResponseUsage) -> list[Event]:
        self._close("incomplete" if self._is_cut else "completed")
        self.response.usage = usage
        self.response.status = "incomplete" if self._is_cut else "completed"
        if self._is_cut:
            self.response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        self._emit(ResponseEvent, f"response.{self.response.status}", response=replace(self.response))
        return self._take()

    def fail(self, code: str, message: str) -> list[Event]:
        self._close("incomplete")
        self.response.status = "failed"
        self.response.error = ResponseFailure(code=code, message=message)
        self._emit(ResponseEvent, "response.failed", response=replace(self.response))
        return self._take()

    def cancel(self) -> list[Event]:
        self._close("incomplete")
        self.response.status = "cancelled"
        self._emit(ResponseEvent, "response.cancelled", response=replace(self.response))
        return self._take()

    def _end_status(self, piece: ChoicePiece) -> ItemStatus:
        return "incomplete" if piece.finish_reason == "length" else "completed"

    def _start(self) -> OpenItem:
        assert self._begun is not None
        tool = self._toolbox.find(self._begun.name or "")
        item = self._open = OpenItem(self._begun, len(self.response.output), tool)
        self._begun = None
        self._emit(ItemEvent, "response.output_item.added", output_index=item.place, item=item.item("in_progress"))
        if item.begin.kind != "tool_call":
            self._emit_part("added", item)
        return item

    def _write(self, text: str) -> None:
        item = self._open or self._start()
        item.text += text
        place: dict[str, Any] = {"item_id": item.name, "output_index": item.place, "delta": text}
        match item.begin.kind:
            case "tool_call":
                kind = "custom_tool_call_input" if item.is_custom else "function_call_arguments"
                self._emit(DeltaEvent, f"response.{kind}.delta", **place)
            case "reasoning":
                self._emit(DeltaEvent, "response.reasoning_text.delta", content_index=0, **place)
            case "content":
                logprobs = self._take_logprobs(item)
                self._emit(DeltaEvent, "response.output_text.delta", content_index=0, logprobs=logprobs, **place)

    def _close(self, status: ItemStatus) -> None:
        self._begun, item, self._open = None, self._open, None
        if item is None:
            return
        place: dict[str, Any] = {"item_id": item.name, "output_index": item.place}
        if item.is_custom:
            self._emit(InputDoneEvent, "response.custom_tool_call_input.done", input=item.text, **place)
        elif item.begin.kind == "tool_call":
            self._emit(ArgumentsDoneEvent, "response.function_call_arguments.done", arguments=item.text, **place)
        else:
            is_content = item.begin.kind == "content"
            if is_content:
                self._take_logprobs(item)
            self._emit(
                TextDoneEvent,
                f"response.{'output_text' if is_content else 'reasoning_text'}.done",
                content_index=0,
                text=item.text,
                logprobs=list(item.logprobs) if is_content else UNSET,
                **place,
            )
            self._emit_part("done", item)
        done = item.item(status)
        self.response.output = [*self.response.output, done]
        self._emit(ItemEvent, "response.output_item.done", output_index=item.place, item=done)

    def _take_logprobs(self, item: OpenItem) -> list[TokenLogprob]:
        taken, self._logprobs = self._logprobs, []
        item.logprobs += taken
        return taken

    def _emit_part(self, word: str, item: OpenItem) -> None:
        self._emit(
            PartEvent,
            f"response.content_part.{word}",
            item_id=item.name,
            output_index=item.place,
            content_index=0,
            part=item.part(),
        )

    def _emit(self, kind: type[Event], name: str, **fields: Any) -> None:
        self._events.append(kind(type=name, sequence_number=self._number, **fields))
        self._number += 1

    def _take(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken
