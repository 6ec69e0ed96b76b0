"""Answers of /v1/responses, whole or as events, as types in the format of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from firesteel.server.openai.answers import ApiAnswer, TokenLogprob
from firesteel.server.responses.schema import ItemStatus, Phase, Reasoning, TextOptions, ToolChoice
from firesteel.server.responses.tool_schema import ShownTool

ResponseStatus = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]


class OutputTextPart(ApiAnswer, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class ReasoningTextPart(ApiAnswer, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(ApiAnswer, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    content: list[OutputTextPart]
    role: Literal["assistant"] = "assistant"
    phase: Phase | None = None


class ReasoningItem(ApiAnswer, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus
    content: list[ReasoningTextPart]
    summary: list[Any] = field(default_factory=list)
    encrypted_content: str | None = None


class FunctionCallItem(ApiAnswer, tag_field="type", tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(ApiAnswer, tag_field="type", tag="custom_tool_call"):
    """A call whose argument is plain text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class InputDetails(ApiAnswer):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(ApiAnswer):
    reasoning_tokens: int


class ResponseUsage(ApiAnswer):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(ApiAnswer):
    code: str
    message: str


class IncompleteDetails(ApiAnswer):
    reason: Literal["max_output_tokens", "content_filter"]


class Response(ApiAnswer):
    id: str
    created_at: int
    model: str
    status: ResponseStatus
    tools: Sequence[ShownTool]
    tool_choice: ToolChoice
    text: TextOptions
    reasoning: Reasoning
    parallel_tool_calls: bool
    store: bool
    temperature: float
    top_p: float
    top_logprobs: int
    truncation: Literal["auto", "disabled"]
    object: Literal["response"] = "response"
    output: list[OutputItem] = field(default_factory=list)
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    previous_response_id: str | None = None
    service_tier: str = "default"
    usage: ResponseUsage | None = None
    user: str | None = None


class InputTokens(ApiAnswer):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class DeletedResponse(ApiAnswer):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(ApiAnswer):
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"
    has_more: bool = False


class Event(ApiAnswer):
    """An event of a stream; the first has number 0."""

    type: str
    sequence_number: int


class ResponseEvent(Event):
    response: Response


class ItemEvent(Event):
    output_index: int
    item: OutputItem


class PartEvent(Event):
    item_id: str
    output_index: int
    content_index: int
    part: OutputTextPart | ReasoningTextPart


class DeltaEvent(Event):
    """More text, or more of a call's arguments, which are not a content part."""

    item_id: str
    output_index: int
    delta: str
    content_index: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class TextDoneEvent(Event):
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class ArgumentsDoneEvent(Event):
    item_id: str
    output_index: int
    arguments: str


class InputDoneEvent(Event):
    item_id: str
    output_index: int
    input: str
