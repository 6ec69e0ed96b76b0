"""Requests of the OpenAI API with vLLM's extensions, as types.

A field that is null counts as not given. Unknown fields are not an error: `read_body` logs them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firesteel.chat.tools import TextRule
from firesteel.server.openai.limits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_SALT_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    MAX_TOKENS_TO_DECODE,
    MAX_TOOLS,
)
from firesteel.server.openai.structured import Choices, GrammarText, Pattern, StructuredOutputs

Temperature = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TOKEN = "Token id"  # title of schemas that the OpenAPI document bounds by the vocabulary
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1, title=TOKEN)]
TokenKey = Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
SomeText = Annotated[str, Meta(min_length=1)]
SomeTokens = Annotated[list[TokenId], Meta(min_length=1)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[Stop], Meta(max_length=MAX_STOPS)]
TopCount = Annotated[int, Meta(ge=0, le=20)]
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=MAX_SALT_CHARACTERS)]
Metadata = Annotated[dict[str, str], Meta(max_length=MAX_METADATA)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS, pattern=r"\S")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class Body(msgspec.Struct, kw_only=True):
    """A request's JSON, or an object in it."""


class TextPart(Body, tag_field="type", tag="text"):
    text: str


class AssistantTextPart(TextPart):
    """A text beside refusals, where `type` is needed to tell them apart."""


class RefusalPart(Body, tag_field="type", tag="refusal"):
    refusal: str


Content = str | list[TextPart]


class SystemMessage(Body, tag_field="role", tag="system"):
    content: Content
    name: str | None = None


class DeveloperMessage(Body, tag_field="role", tag="developer"):
    content: Content
    name: str | None = None


class UserMessage(Body, tag_field="role", tag="user"):
    content: Content
    name: str | None = None


class CalledFunction(Body):
    name: Name
    arguments: str


class CalledWithText(CalledFunction):
    """A call whose argument is plain text. Only other endpoints create it, never a chat request."""


class ToolCall(Body):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AssistantMessage(Body, tag_field="role", tag="assistant"):
    content: str | list[AssistantTextPart | RefusalPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # another name for the same
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None
    name: str | None = None


class ToolMessage(Body, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: str | None = None
    name: str | None = None


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
Messages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class FunctionSpec(Body):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextFunctionSpec(FunctionSpec, kw_only=True):
    """A function whose argument is plain text. Only other endpoints create it, never a chat request."""

    text: TextRule


class ToolSpec(Body):
    function: FunctionSpec
    type: Literal["function"] = "function"


Tools = Annotated[list[ToolSpec], Meta(max_length=MAX_TOOLS)]


class NamedFunction(Body):
    name: Name


class NamedChoice(Body, tag_field="type", tag="function"):
    function: NamedFunction


class AllowedFunction(Body):
    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedFunctions(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedFunction], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(Body, tag_field="type", tag="allowed_tools"):
    allowed_tools: AllowedFunctions


class TextFormat(Body, tag_field="type", tag="text"):
    pass


class JsonFormat(Body, tag_field="type", tag="json_object"):
    pass


class JsonSchema(Body):
    name: Name
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class JsonSchemaFormat(Body, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


AnswerFormat = TextFormat | JsonFormat | JsonSchemaFormat


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(Body, kw_only=True):
    """Fields that all requests for text share."""

    model: str | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: Annotated[dict[TokenKey, Bias], Meta(max_length=MAX_LOGIT_BIAS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)] | None = None
    seed: Seed | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: Stop | Stops | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_prompt: bool | None = None
    cache_salt: CacheSalt | None = None
    user: str | None = None
    response_format: AnswerFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | SomeText | None = None  # older names of the same
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None
    guided_whitespace_pattern: Pattern | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS)] | None = None
    prompt_logprobs: TopCount | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: Annotated[str, Meta(pattern=r"^[\w.:-]{1,128}$")] | None = None


class TemplateOptions(Body):
    reasoning_effort: Effort | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopCount | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None  # the message that is continued is part of the answer
    return_prompt_text: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: SomeText | Annotated[list[SomeText | TokenId | SomeTokens], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None  # 0: the prompt alone, echoed and scored
    logprobs: TopCount | None = None
    echo: bool | None = None
    skip_special_tokens: bool | None = None
    truncation_side: Literal["left", "right"] | None = None
    suffix: str | None = None
    best_of: Count | None = None


class TokenizeRequest(Body):
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS_TO_DECODE)]
    model: str | None = None
