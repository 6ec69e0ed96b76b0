"""What the server answers, as types in the OpenAI API's shape; knows no request and no engine."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

HealthStatus = Literal["ready", "degraded", "failed", "stopping"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class Answer(msgspec.Struct, kw_only=True):
    """An answer's JSON, or an object in it. Fields that are UNSET are left out."""


class PromptDetails(Answer):
    cached_tokens: int = 0


class CompletionDetails(Answer):
    reasoning_tokens: int = 0


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[TokenLogprob] | None
    refusal: None = None


class FunctionCall(Answer):
    name: str
    arguments: str


class ToolCallAnswer(Answer):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class MessageAnswer(Answer):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallAnswer] | UnsetType = UNSET


class ChatChoice(Answer):
    index: int
    message: MessageAnswer
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Answer):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(Answer):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Answer):
    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class MessageDelta(Answer):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Answer):
    index: int
    delta: MessageDelta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Answer):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionLogprobs(Answer):
    """Columns, one entry a token; the first token of an echoed prompt has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: CompletionLogprobs | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Answer):
    """A whole one, or a piece of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET


class Model(Answer):
    id: str
    created: int
    root: str
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "firesteel"
    parent: None = None


class ModelList(Answer):
    data: list[Model]
    object: Literal["list"] = "list"


class Tokens(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(Answer):
    prompt: str


class ErrorDetail(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    error: ErrorDetail


class Health(Answer):
    status: HealthStatus
    live: bool
    ready: bool
    engine_deaths: int
    reason: str | None = None


class LedgerLine(Answer):
    op: str
    implementation: str
    activation: str
    calls: int
    seconds: float
    launches: dict[str, int]
    clipped: int | None


class LedgerAnswer(Answer):
    device: str
    kernels: dict[str, str]
    ran: list[LedgerLine]
