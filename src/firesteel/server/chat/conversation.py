"""Turns a chat request into Harmony messages, and the form that its answer must have into a grammar.

A client's system and developer prompts become Harmony's developer message; Harmony's own system message names the
reasoning effort and the channels. Reasoning that a client sends back is kept only within its turn.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from firesteel.chat.format import CONSTRAIN, Message
from firesteel.chat.grammar import JSON_OBJECT, Constraint, Grammar, SchemaError, build_grammar
from firesteel.chat.harmony import ResponseFormat, developer_message, system_message
from firesteel.chat.schema import SchemaLimits
from firesteel.chat.tools import Tool
from firesteel.errors import RequestError
from firesteel.server.generate.constraint import find_form
from firesteel.server.grammar.pool import refuse
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import (
    AllowedChoice,
    AssistantMessage,
    CalledWithText,
    ChatMessage,
    ChatRequest,
    DeveloperMessage,
    JsonFormat,
    JsonSchemaFormat,
    NamedChoice,
    RefusalPart,
    SystemMessage,
    TextFunctionSpec,
    TextPart,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

NAMESPACE = "functions."
# Harmony has three efforts.
EFFORTS = {"none": "low", "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}


def find_effort(request: ChatRequest) -> str:
    template = request.chat_template_kwargs
    return request.reasoning_effort or (template.reasoning_effort if template else None) or "medium"


def render_chat(request: ChatRequest, *, prompt_date: str = "none") -> list[Message]:
    """Renders the whole conversation; `prompt_date` is none, today or a date."""
    tools = [] if request.tool_choice == "none" else find_tools(request)
    formats = read_formats(request)
    system = system_message(
        effort=EFFORTS[find_effort(request)], date=find_date(prompt_date), has_functions=bool(tools)
    )
    instructions, rest = split_instructions(request.messages)
    opening = [system]
    if instructions is not None or tools or formats:
        opening.append(developer_message(instructions=instructions, tools=tools, response_formats=formats))
    return [*opening, *render_messages(rest)]


def find_date(word: str) -> str | None:
    if word == "none":
        return None
    return datetime.datetime.now(datetime.UTC).date().isoformat() if word == "today" else word


def find_tools(request: ChatRequest) -> list[Tool]:
    """Returns the tools that the model may call: all of them unless `tool_choice` allows only some."""
    tools, choice = read_tools(request.tools or ()), request.tool_choice
    if not isinstance(choice, AllowedChoice):
        return tools
    names = {entry.function.name for entry in choice.allowed_tools.tools}
    if unknown := sorted(names - {tool.name for tool in tools}):
        raise ApiError(400, f"tool_choice allows {unknown[0]}, which is not in tools", param="tool_choice")
    return [tool for tool in tools if tool.name in names]


def read_tools(specs: Iterable[ToolSpec]) -> list[Tool]:
    tools: dict[str, Tool] = {}
    limits = SchemaLimits()
    for number, spec in enumerate(specs):
        function = spec.function
        if function.name in tools:
            raise ApiError(400, f"two tools are named {function.name}", param=f"tools[{number}].function.name")
        check_schema(function.parameters, f"tools[{number}].function.parameters", limits)
        tools[function.name] = Tool(
            name=function.name,
            description=function.description or "",
            parameters=function.parameters,
            strict=bool(function.strict),
            text=function.text if isinstance(function, TextFunctionSpec) else None,
        )
    return list(tools.values())


def read_formats(request: ChatRequest) -> list[ResponseFormat]:
    asked = request.response_format
    if not isinstance(asked, JsonSchemaFormat):
        return []
    wanted = asked.json_schema
    check_schema(wanted.schema, "response_format.json_schema.schema", SchemaLimits())
    return [
        ResponseFormat(
            name=wanted.name,
            schema=wanted.schema or {},
            description=wanted.description,
            strict=bool(wanted.strict),
        )
    ]


def find_grammar(asked: ChatRequest, constraint: Constraint | None = None) -> Grammar | None:
    """Returns the grammar of the answer, or None if any text is allowed. It is not compiled here."""
    tools, choice = find_tools(asked), asked.tool_choice
    word = choice.allowed_tools.mode if isinstance(choice, AllowedChoice) else choice
    try:
        return build_grammar(
            tools=tools,
            tool_choice=word if isinstance(word, str) and tools else "auto",
            function=choice.function.name if isinstance(choice, NamedChoice) else None,
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            response_format=find_format(asked),
            constraint=constraint,
        )
    except SchemaError as error:
        raise refuse(error) from None
    except RequestError as error:
        raise ApiError(400, str(error), param="tools") from None


def find_format(asked: ChatRequest) -> ResponseFormat | None:
    if isinstance(asked.response_format, JsonFormat):
        return JSON_OBJECT
    return next(iter(read_formats(asked)), None)


def may_need_grammar(asked: ChatRequest) -> bool:
    return bool(asked.tools or asked.response_format or find_form(asked))


def check_schema(schema: dict[str, Any] | None, place: str, limits: SchemaLimits) -> None:
    if flaw := limits.find_flaw(schema):
        raise ApiError(400, f"{place}: the schema cannot be read: {flaw}", param=place, code="invalid_value")


def split_instructions(messages: Sequence[ChatMessage]) -> tuple[str | None, Sequence[ChatMessage]]:
    """Returns the leading system and developer prompts as one text, and the messages after them."""
    texts: list[str] = []
    for message in messages:
        if not isinstance(message, SystemMessage | DeveloperMessage):
            break
        texts.append(text_of(message.content))
    return "\n\n".join(texts) if texts else None, messages[len(texts) :]


def render_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    rendered: list[Message] = []
    names: dict[str, str] = {}  # called function by call id
    for number, message in enumerate(messages):
        match message:
            case UserMessage():
                rendered.append(Message(role="user", content=text_of(message.content)))
            case SystemMessage() | DeveloperMessage():
                rendered.append(developer_message(instructions=text_of(message.content)))
            case AssistantMessage():
                names |= {call.id: call.function.name for call in message.tool_calls or ()}
                rendered += render_assistant(message)
            case ToolMessage():
                rendered.append(render_tool_result(message, names, number))
    return rendered


def render_assistant(message: AssistantMessage) -> list[Message]:
    rendered = []
    calls = message.tool_calls or []
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        rendered.append(Message(role="assistant", channel="analysis", content=reasoning))
    content = text_of(message.content) or message.refusal or ""
    if content or not (calls or reasoning):
        rendered.append(Message(role="assistant", channel="commentary" if calls else "final", content=content))
    for call in calls:
        rendered.append(
            Message(
                role="assistant",
                channel="commentary",
                recipient=NAMESPACE + call.function.name,
                content_type=None if isinstance(call.function, CalledWithText) else f"{CONSTRAIN}json",
                content=call.function.arguments,
            )
        )
    return rendered


def render_tool_result(message: ToolMessage, names: dict[str, str], number: int) -> Message:
    """Renders the result under the name of the function whose call it answers."""
    name = names.get(message.tool_call_id or "") or message.name
    if name is None and len(set(names.values())) == 1:
        name = next(iter(names.values()))
    if name is None:
        raise ApiError(
            400,
            f"tool_call_id {message.tool_call_id!r} does not answer a call of an earlier assistant message",
            param=f"messages[{number}].tool_call_id",
        )
    return Message(
        role="tool",
        name=NAMESPACE + name.removeprefix(NAMESPACE),
        recipient="assistant",
        channel="commentary",
        content=text_of(message.content),
    )


def text_of(content: str | Sequence[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)
