"""Requests to /v1/messages and /v1/messages/count_tokens, as types.

Fields that this server does not need are left out: `cache_control` (every prompt is cached), `citations`, and the
like. Top-level ones are logged, as on every path.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from firesteel.server.openai.limits import MAX_MESSAGES, MAX_TOOLS
from firesteel.server.openai.requests import Body, Count, Share, Stops, Temperature, TextPart

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]  # as Anthropic; OpenAI allows 64
SomeText = str | list[TextPart]


class TextBlock(TextPart, tag_field="type", tag="text"):
    """Text beside blocks of other kinds."""


class ThinkingBlock(Body, tag_field="type", tag="thinking"):
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Body, tag_field="type", tag="redacted_thinking"):
    data: str


class ToolUseBlock(Body, tag_field="type", tag="tool_use"):
    id: str
    name: ToolName
    input: dict[str, Any]


class ToolResultBlock(Body, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: SomeText | None = None
    is_error: bool | None = None


UserBlock = TextBlock | ToolResultBlock
AssistantBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock


class UserTurn(Body, tag_field="role", tag="user"):
    content: str | list[UserBlock]


class AssistantTurn(Body, tag_field="role", tag="assistant"):
    content: str | list[AssistantBlock]


class SystemTurn(Body, tag_field="role", tag="system"):
    """Instructions within a conversation."""

    content: SomeText


Turn = UserTurn | AssistantTurn | SystemTurn
Turns = Annotated[list[Turn], Meta(min_length=1, max_length=MAX_MESSAGES)]


class AnthropicTool(Body):
    """A tool of the client if `type` is custom or missing, else one that Anthropic defines or runs."""

    name: ToolName
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def is_custom(self) -> bool:
        return self.type in (None, "custom")


class AutoChoice(Body, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Body, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool | None = None


class ToolChoice(Body, tag_field="type", tag="tool"):
    name: ToolName
    disable_parallel_tool_use: bool | None = None


class NoChoice(Body, tag_field="type", tag="none"):
    pass


Display = Literal["summarized", "omitted"]


class EnabledThinking(Body, tag_field="type", tag="enabled"):
    budget_tokens: Count | None = None
    display: Display | None = None


class AdaptiveThinking(Body, tag_field="type", tag="adaptive"):
    display: Display | None = None


class DisabledThinking(Body, tag_field="type", tag="disabled"):
    pass


class OutputFormat(Body):
    schema: dict[str, Any]
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ContextEdit(Body):
    type: str


class ContextManagement(Body):
    edits: list[ContextEdit] | None = None


class Sender(Body):
    user_id: str | None = None


class PromptRequest(Body, kw_only=True):
    """Fields that both requests share."""

    messages: Turns
    model: str | None = None
    system: SomeText | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolChoice | NoChoice | None = None
    thinking: EnabledThinking | AdaptiveThinking | DisabledThinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the earlier name of output_config.format
    context_management: ContextManagement | None = None
    mcp_servers: list[Any] | None = None
    thread: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None  # every prompt is cached


class CountRequest(PromptRequest, kw_only=True):
    pass


class MessageRequest(PromptRequest, kw_only=True):
    max_tokens: Count
    stop_sequences: Stops | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stream: bool | None = None
    metadata: Sender | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
