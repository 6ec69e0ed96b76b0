"""Answers of the server as types in the format of the OpenAI API."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

HealthStatus = Literal["ready", "degraded", "failed", "stopping"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class ApiAnswer(msgspec.Struct, kw_only=True):
    """An answer's JSON, or an object in it. Fields that are UNSET are omitted."""


class PromptDetails(ApiAnswer, kw_only=True):
    cached_tokens: int = 0


class CompletionDetails(ApiAnswer, kw_only=True):
    reasoning_tokens: int = 0


class Usage(ApiAnswer, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class TopLogprob(ApiAnswer, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(ApiAnswer, kw_only=True):
    content: list[TokenLogprob] | None
    refusal: None = None


class FunctionCall(ApiAnswer, kw_only=True):
    name: str
    arguments: str


class ToolCallAnswer(ApiAnswer, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class MessageAnswer(ApiAnswer, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallAnswer] | UnsetType = UNSET


class PromptLogprob(ApiAnswer, kw_only=True):
    logprob: float
    rank: int | None  # from 1; None: not among the most likely tokens that were asked for
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id; None for the first token


class ChatChoice(ApiAnswer, kw_only=True):
    index: int
    message: MessageAnswer
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(ApiAnswer, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionDelta(ApiAnswer, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(ApiAnswer, kw_only=True):
    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class MessageDelta(ApiAnswer, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(ApiAnswer, kw_only=True):
    index: int
    delta: MessageDelta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(ApiAnswer, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class CompletionLogprobs(ApiAnswer, kw_only=True):
    """Columns, one entry per token; the first token of an echoed prompt has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(ApiAnswer, kw_only=True):
    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: CompletionLogprobs | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(ApiAnswer, kw_only=True):
    """A whole completion, or a chunk of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET


class Model(ApiAnswer, kw_only=True):
    """A served model, with the fields of OpenAI's, vLLM's and Anthropic's lists of models."""

    id: str
    object: Literal["model"] = "model"
    type: Literal["model"] = "model"
    created: int
    created_at: str  # the same time, as text
    display_name: str
    max_input_tokens: int
    max_tokens: int
    root: str
    max_model_len: int
    owned_by: str = "firesteel"
    parent: None = None
    formats: dict[str, str]  # of the weights in MXFP4 beside the experts, the activations and the KV cache


class ModelList(ApiAnswer, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


class Tokens(ApiAnswer, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(ApiAnswer, kw_only=True):
    prompt: str


class ErrorDetail(ApiAnswer, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(ApiAnswer, kw_only=True):
    error: ErrorDetail


class Health(ApiAnswer, kw_only=True):
    status: HealthStatus
    live: bool
    ready: bool
    engine_deaths: int
    reason: str | None = None


class LedgerCode(ApiAnswer, kw_only=True):
    """Machine code that was launched."""

    kernel: str
    tile: str
    artefact: str
    launches: int
    verdict: str | None


class LedgerLine(ApiAnswer, kw_only=True):
    op: str
    implementation: str
    activation: str
    calls: int
    seconds: float
    launches: dict[str, int]
    clipped: int | None
    artefacts: list[LedgerCode]


class LedgerDrafts(ApiAnswer, kw_only=True):
    """Drafts that the current engine has verified."""

    kind: str  # as --speculate
    drafts: int  # times that drafts of a request were verified
    draft_tokens: int
    accepted_tokens: int
    accepted_at: list[int]  # drafts accepted at least up to each position


class LedgerAnswer(ApiAnswer, kw_only=True):
    device: str
    kernels: dict[str, str]
    formats: dict[str, str]
    sinks: bool
    graphs: int | None  # decoding steps that were made, captured on a GPU; None: unknown
    late_compilations: int | None  # kernels compiled or loaded while requests were served; None: unknown
    late_captures: int | None  # steps made while requests were served
    prompt_steps: dict[str, int]  # steps with prompts: replayed, or run op by op, by reason
    draft_steps: dict[str, int]  # the same of a draft network: times that it drafted, or stored rows of a step
    drafts: LedgerDrafts | None  # None: --speculate off, or unknown
    ran: list[LedgerLine]
