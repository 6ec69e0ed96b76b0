"""Turns a request to /v1/messages into the equivalent chat request."""

from __future__ import annotations

import logging
from itertools import groupby

import msgspec

from firesteel.server.anthropic.errors import NO_THREADS
from firesteel.server.anthropic.schema import (
    AssistantTurn,
    DisabledThinking,
    EnabledThinking,
    MessageRequest,
    PromptRequest,
    RedactedThinkingBlock,
    SomeText,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)
from firesteel.server.anthropic.signature import read_signature
from firesteel.server.anthropic.tools import may_call_in_parallel, read_choice, read_tools
from firesteel.server.chat.conversation import text_of
from firesteel.server.chat.turns import ConversationBuilder
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    Effort,
    JsonSchema,
    JsonSchemaFormat,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)

log = logging.getLogger(__name__)
# Claude Code puts facts for Anthropic's accounting here. They differ by conversation, so that no prefix of the
# prompt would be found in the cache, and say nothing to the model.
ACCOUNTING = "x-anthropic-billing-header:"
KEPT_EDITS = "clear_thinking_"  # thinking before the last question is dropped, which these edits allow
FAILED = "Error: "  # precedes the text of a failed tool's result; Harmony has no other way to say it
LOW_BUDGET, MEDIUM_BUDGET = 4096, 16384  # tokens: the largest thinking budgets of these efforts


def as_chat(asked: PromptRequest) -> ChatRequest:
    check_supported(asked)
    wanted = (asked.output_config.format if asked.output_config else None) or asked.output_format
    request = ChatRequest(
        model=asked.model,
        messages=[*read_system(asked.system), *TurnReader(asked).read()],
        reasoning_effort=find_effort(asked),
        tools=read_tools(asked.tools or ()) or None,
        tool_choice=read_choice(asked),
        parallel_tool_calls=may_call_in_parallel(asked),
        response_format=None
        if wanted is None
        else JsonSchemaFormat(json_schema=JsonSchema(name="answer", schema=wanted.schema, strict=True)),
    )
    if isinstance(asked, MessageRequest):
        request.max_tokens = asked.max_tokens
        request.stop = asked.stop_sequences
        request.temperature, request.top_p, request.top_k = asked.temperature, asked.top_p, asked.top_k
        request.stream = asked.stream
    return request


def check_supported(asked: PromptRequest) -> None:
    if asked.mcp_servers:
        raise ApiError(
            400, "this server calls no MCP servers: give their tools as custom tools", param="mcp_servers"
        )
    if asked.thread is not None:
        raise ApiError(400, "conversations are not stored here: send all messages", param="thread", code=NO_THREADS)
    edits = asked.context_management.edits if asked.context_management else None
    for number, edit in enumerate(edits or ()):
        if not edit.type.startswith(KEPT_EDITS):
            raise ApiError(
                400,
                f"{edit.type!r:.100} is not supported: edit the messages before sending them",
                param=f"context_management.edits[{number}]",
            )
    last = next((turn for turn in reversed(asked.messages) if not isinstance(turn, SystemTurn)), None)
    if isinstance(last, AssistantTurn):
        raise ApiError(
            400, "an answer cannot be prefilled: the conversation must end with a user message", param="messages"
        )


def find_effort(asked: PromptRequest) -> Effort | None:
    """Returns the effort that was given, or else that of the thinking budget; None is this server's default."""
    if asked.output_config is not None and asked.output_config.effort is not None:
        return "xhigh" if asked.output_config.effort == "max" else asked.output_config.effort
    match asked.thinking:
        case DisabledThinking():
            return "low"
        case EnabledThinking(budget_tokens=int(budget)):
            return "low" if budget <= LOW_BUDGET else "medium" if budget <= MEDIUM_BUDGET else "high"
    return None


def read_system(system: SomeText | None) -> list[SystemMessage]:
    texts = [system] if isinstance(system, str) else [part.text for part in system or ()]
    return [SystemMessage(content=text) for text in texts if not text.startswith(ACCOUNTING)]


class TurnReader:
    """Reads the turns of one request."""

    def __init__(self, asked: PromptRequest) -> None:
        self._turns = asked.messages
        self._chat = ConversationBuilder()
        self._calls: set[str] = set()  # ids of the tool_use blocks so far
        self._last_question = max(
            (number for number, turn in enumerate(self._turns) if is_question(turn)), default=0
        )

    def read(self) -> list[ChatMessage]:
        for number, turn in enumerate(self._turns):
            match turn:
                case SystemTurn():
                    self._chat.add(SystemMessage(content=text_of(turn.content)))
                case UserTurn():
                    self._read_user(turn, number)
                case AssistantTurn():
                    self._read_assistant(turn, number)
        return self._chat.messages

    def _read_user(self, turn: UserTurn, number: int) -> None:
        if isinstance(turn.content, str):
            self._chat.add(UserMessage(content=turn.content))
            return
        place = 0
        for is_text, group in groupby(turn.content, lambda part: isinstance(part, TextPart)):
            parts = list(group)
            if is_text:
                self._chat.add(UserMessage(content=[part for part in parts if isinstance(part, TextPart)]))
            for index, part in enumerate(parts, place):
                if isinstance(part, ToolResultBlock):
                    self._read_result(part, f"messages[{number}].content[{index}]")
            place += len(parts)

    def _read_result(self, result: ToolResultBlock, place: str) -> None:
        if result.tool_use_id not in self._calls:
            raise ApiError(
                400,
                f"no earlier tool_use block has the id {result.tool_use_id!r:.100}",
                param=f"{place}.tool_use_id",
            )
        text = text_of(result.content)
        self._chat.add(
            ToolMessage(content=FAILED + text if result.is_error else text, tool_call_id=result.tool_use_id)
        )

    def _read_assistant(self, turn: AssistantTurn, number: int) -> None:
        parts = [TextBlock(text=turn.content)] if isinstance(turn.content, str) else turn.content
        texts: list[str] = []
        for index, part in enumerate(parts):
            if isinstance(part, TextPart):
                texts.append(part.text)
                continue
            self._write(texts)
            place = f"messages[{number}].content[{index}]"
            match part:
                case ThinkingBlock():
                    if (text := read_thinking(part, place)) and number > self._last_question:
                        self._chat.add_reasoning(text)
                case RedactedThinkingBlock():
                    log.info("thinking left out: another server encrypted it")
                case ToolUseBlock():
                    self._calls.add(part.id)
                    self._chat.add_call(read_call(part, place))
        self._write(texts)

    def _write(self, texts: list[str]) -> None:
        if texts:
            self._chat.add_content("".join(texts))
            texts.clear()


def is_question(turn: object) -> bool:
    """Returns whether a turn begins with the user; results of tools continue the assistant's turn."""
    return isinstance(turn, UserTurn) and (
        isinstance(turn.content, str) or not any(isinstance(part, ToolResultBlock) for part in turn.content)
    )


def read_thinking(part: ThinkingBlock, place: str) -> str:
    try:
        return part.thinking or read_signature(part.signature or "")
    except ValueError:
        raise ApiError(400, "the signature is damaged: send it as it came", param=f"{place}.signature") from None


def read_call(part: ToolUseBlock, place: str) -> ToolCall:
    try:
        arguments = msgspec.json.encode(part.input).decode()
    except RecursionError:
        raise ApiError(400, "the input is nested too deeply", param=f"{place}.input") from None
    return ToolCall(id=part.id, function=CalledFunction(name=part.name, arguments=arguments))
