"""Answers of /v1/messages, whole or as events, as types in the format of Anthropic's API."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from firesteel.server.openai.answers import ApiAnswer

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
]


class TextAnswer(ApiAnswer, tag_field="type", tag="text"):
    text: str


class ThinkingAnswer(ApiAnswer, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseAnswer(ApiAnswer, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextAnswer | ThinkingAnswer | ToolUseAnswer


class ThinkingCount(ApiAnswer):
    thinking_tokens: int


class MessageUsage(ApiAnswer):
    """Tokens of a message; those of the prompt are the sum of the three counts of input."""

    input_tokens: int  # computed for this request
    cache_read_input_tokens: int  # found in the cache
    output_tokens: int
    output_tokens_details: ThinkingCount
    cache_creation_input_tokens: int = 0
    service_tier: Literal["standard"] = "standard"


class AnthropicMessage(ApiAnswer, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock] = field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(ApiAnswer):
    input_tokens: int


class ErrorDetails(ApiAnswer):
    error_code: str
    unsupported: list[str]


class ErrorText(ApiAnswer):
    type: str
    message: str
    details: ErrorDetails | UnsetType = UNSET


class AnthropicError(ApiAnswer, kw_only=True):
    type: Literal["error"] = "error"
    error: ErrorText
    request_id: str


class MessageStart(ApiAnswer, tag_field="type", tag="message_start"):
    message: AnthropicMessage


class Ping(ApiAnswer, tag_field="type", tag="ping"):
    pass


class BlockStart(ApiAnswer, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextPiece(ApiAnswer, tag_field="type", tag="text_delta"):
    text: str


class ThinkingPiece(ApiAnswer, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignaturePiece(ApiAnswer, tag_field="type", tag="signature_delta"):
    signature: str


class InputPiece(ApiAnswer, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(ApiAnswer, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextPiece | ThinkingPiece | SignaturePiece | InputPiece


class BlockStop(ApiAnswer, tag_field="type", tag="content_block_stop"):
    index: int


class MessageEnd(ApiAnswer):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageUpdate(ApiAnswer, tag_field="type", tag="message_delta"):
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(ApiAnswer, tag_field="type", tag="message_stop"):
    pass


MessageEvent = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageUpdate | MessageStop


def name_of(event: MessageEvent) -> str:
    """Returns the name that an event has in its stream."""
    return str(event.__struct_config__.tag)
