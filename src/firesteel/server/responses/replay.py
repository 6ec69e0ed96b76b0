"""Events of a finished response that was not followed: the same kinds in the same order, each text in one delta."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from firesteel.server.responses.answers import (
    ArgumentsDoneEvent,
    CustomCallItem,
    DeltaEvent,
    Event,
    FunctionCallItem,
    InputDoneEvent,
    ItemEvent,
    OutputItem,
    OutputTextPart,
    PartEvent,
    ReasoningTextPart,
    Response,
    ResponseEvent,
    TextDoneEvent,
)

Draft = tuple[type[Event], str, dict[str, Any]]  # an event without its number


def replay(response: Response) -> list[Event]:
    begun = replace(response, output=[], status="in_progress", usage=None, error=None, incomplete_details=None)
    drafts: list[Draft] = [
        (ResponseEvent, "created", {"response": begun}),
        (ResponseEvent, "in_progress", {"response": begun}),
    ]
    for place, item in enumerate(response.output):
        drafts += replay_item(item, place)
    drafts.append((ResponseEvent, response.status, {"response": response}))
    return [
        kind(type=f"response.{name}", sequence_number=number, **fields)
        for number, (kind, name, fields) in enumerate(drafts)
    ]


def replay_item(item: OutputItem, place: int) -> Iterator[Draft]:
    index: dict[str, Any] = {"output_index": place, "item_id": item.id}
    yield ItemEvent, "output_item.added", {"output_index": place, "item": empty(item)}
    match item:
        case FunctionCallItem():
            yield DeltaEvent, "function_call_arguments.delta", {**index, "delta": item.arguments}
            yield ArgumentsDoneEvent, "function_call_arguments.done", {**index, "arguments": item.arguments}
        case CustomCallItem():
            yield DeltaEvent, "custom_tool_call_input.delta", {**index, "delta": item.input}
            yield InputDoneEvent, "custom_tool_call_input.done", {**index, "input": item.input}
        case _:
            for part in item.content:
                yield from replay_part(part, {**index, "content_index": 0})
    yield ItemEvent, "output_item.done", {"output_index": place, "item": item}


def replay_part(part: OutputTextPart | ReasoningTextPart, index: dict[str, Any]) -> Iterator[Draft]:
    logprobs = part.logprobs if isinstance(part, OutputTextPart) else UNSET
    kind = "reasoning_text" if isinstance(part, ReasoningTextPart) else "output_text"
    blank = replace(part, text="", logprobs=[]) if isinstance(part, OutputTextPart) else replace(part, text="")
    yield PartEvent, "content_part.added", {**index, "part": blank}
    yield DeltaEvent, f"{kind}.delta", {**index, "delta": part.text, "logprobs": logprobs}
    yield TextDoneEvent, f"{kind}.done", {**index, "text": part.text, "logprobs": logprobs}
    yield PartEvent, "content_part.done", {**index, "part": part}


def empty(item: OutputItem) -> OutputItem:
    """Returns the item as it was before its text."""
    match item:
        case FunctionCallItem():
            return replace(item, status="in_progress", arguments="")
        case CustomCallItem():
            return replace(item, status="in_progress", input="")
    return replace(item, status="in_progress", content=[])
