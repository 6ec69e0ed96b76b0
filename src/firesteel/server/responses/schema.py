"""Requests to /v1/responses, as types.

A list of input holds items of several kinds, and messages may omit their kind. So all items are one type, and
`input.py` checks which fields a kind needs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from firesteel.server.openai.limits import MAX_MESSAGES, MAX_TOOLS
from firesteel.server.openai.requests import (
    Body,
    Count,
    Effort,
    GenerationRequest,
    JsonFormat,
    Metadata,
    Name,
    StreamOptions,
    TextFormat,
    TopCount,
)
from firesteel.server.responses.tool_schema import SomeTools, ToolKind

ItemKind = Literal[
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "item_reference",
    "additional_tools",
]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Phase = Literal["commentary", "final_answer"]
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class InputText(Body, tag_field="type", tag="input_text"):
    text: str


class OutputText(Body, tag_field="type", tag="output_text"):
    text: str


class ReasoningText(Body, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Body, tag_field="type", tag="summary_text"):
    text: str


class PlainText(Body, tag_field="type", tag="text"):
    text: str


class Refusal(Body, tag_field="type", tag="refusal"):
    refusal: str


Part = InputText | OutputText | ReasoningText | SummaryText | PlainText | Refusal


class Item(Body):
    """A message, reasoning, a call or its result, the id of a stored item, or further tools."""

    type: ItemKind = "message"
    id: str | None = None
    status: ItemStatus | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None  # of a message
    content: str | list[Part] | None = None  # of a message or of reasoning
    phase: Phase | None = None  # of an assistant's message
    summary: list[Part] | None = None  # of reasoning
    encrypted_content: str | None = None  # of reasoning; never created here, so never read
    call_id: str | None = None  # of a call or a result
    name: Name | None = None  # of a call
    namespace: Name | None = None  # of a call
    arguments: str | None = None  # of a call of a function
    input: str | None = None  # of a call of a custom tool
    output: str | list[Part] | None = None  # of a result
    tools: SomeTools | None = None  # of additional_tools


class FunctionChoice(Body, tag_field="type", tag="function"):
    name: Name
    namespace: Name | None = None


class CustomChoice(Body, tag_field="type", tag="custom"):
    name: Name
    namespace: Name | None = None


class AllowedTool(Body):
    """A function or a custom tool; hosted tools have no name."""

    name: Name | None = None
    namespace: Name | None = None
    type: ToolKind = "function"


class AllowedTools(Body, tag_field="type", tag="allowed_tools"):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


ToolChoice = Literal["none", "auto", "required"] | FunctionChoice | CustomChoice | AllowedTools


class SchemaFormat(Body, tag_field="type", tag="json_schema"):
    name: Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextOptions(Body):
    format: TextFormat | JsonFormat | SchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(StreamOptions):
    include_obfuscation: bool | None = None


class ResponseRequest(GenerationRequest, kw_only=True):
    """A response to create. Fields that the Responses API of OpenAI lacks are those of chat requests."""

    input: str | Annotated[list[Item], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    top_logprobs: TopCount | None = None
    include: list[Included] | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    tools: SomeTools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    client_metadata: Any = None
    service_tier: str | None = None
    conversation: Any = None
    prompt: Any = None


class InputTokensRequest(ResponseRequest, kw_only=True):
    """A response whose input tokens are counted; every field may be left out."""

    input: str | Annotated[list[Item], Meta(min_length=1, max_length=MAX_MESSAGES)] = field(default_factory=list)
