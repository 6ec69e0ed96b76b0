"""Turns a request to /v1/responses into the equivalent chat request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from firesteel.server.chat.turns import ConversationBuilder
from firesteel.server.http.errors import ApiError
from firesteel.server.openai import requests as chat
from firesteel.server.openai.limits import MAX_MESSAGES
from firesteel.server.responses.schema import (
    AllowedTools,
    CustomChoice,
    FunctionChoice,
    Item,
    Part,
    Refusal,
    ResponseRequest,
    SchemaFormat,
)
from firesteel.server.responses.toolbox import Toolbox, flatten

NEEDED: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "item_reference": ("id",),
    "additional_tools": ("tools",),
}
RESULTS = ("function_call_output", "custom_tool_call_output")
CALLS = ("function_call", "custom_tool_call")
# Fields of all requests for text that a response does not have: a value that asks for nothing, and what to do.
REFUSED: dict[str, tuple[object, str]] = {
    "max_tokens": (None, "use max_output_tokens"),
    "n": (1, "a response has one answer: send the request again for another"),
    "return_token_ids": (False, "responses have no token ids: use /v1/chat/completions"),
    "return_tokens_as_token_ids": (False, "responses have no token ids: use /v1/chat/completions"),
    "prompt_logprobs": (None, "responses have none of the prompt: use /v1/chat/completions"),
    "response_format": (None, "use text.format"),
    "request_id": (None, "a response gets its own id; the header x-request-id names a request in the log"),
}
SPEAKERS: dict[str, Callable[..., chat.ChatMessage]] = {
    "system": chat.SystemMessage,
    "developer": chat.DeveloperMessage,
    "user": chat.UserMessage,
}
LOGPROBS = "message.output_text.logprobs"


def read_items(asked: ResponseRequest) -> list[Item]:
    """Returns the input as items, each checked for the fields that its kind needs."""
    if isinstance(asked.input, str):
        return [Item(role="user", content=asked.input)]
    for number, item in enumerate(asked.input):
        for name in NEEDED[item.type]:
            if getattr(item, name) is None:
                place = f"input[{number}].{name}"
                raise ApiError(400, f"{place}: required for a {item.type}", param=place, code="invalid_value")
    return asked.input


def check_supported(asked: ResponseRequest) -> None:
    if asked.conversation is not None:
        raise ApiError(400, "conversations are not stored here: use previous_response_id", param="conversation")
    if asked.prompt is not None:
        raise ApiError(400, "prompt templates are not stored here: use instructions and input", param="prompt")
    for name, (harmless, cure) in REFUSED.items():
        if getattr(asked, name) not in (None, harmless):
            raise ApiError(400, f"{name} is not a field of responses: {cure}", param=name)
    if asked.background and asked.store is False:
        raise ApiError(400, "a background response must be stored to be retrieved: set store = true", param="store")


def as_chat(asked: ResponseRequest, history: Sequence[Item], toolbox: Toolbox) -> chat.ChatRequest:
    """Builds the chat request; `history` is all items, those of earlier responses first."""
    if len(history) > MAX_MESSAGES:
        raise ApiError(
            400,
            f"{len(history)} input items, those of earlier responses included, exceed the limit of {MAX_MESSAGES}",
            param="input",
        )
    messages: list[chat.ChatMessage] = []
    if asked.instructions is not None:
        messages.append(chat.DeveloperMessage(content=asked.instructions))
    messages += read_messages(drop_earlier_reasoning(history))
    wants_logprobs = LOGPROBS in (asked.include or ())
    translated: dict[str, Any] = {
        "messages": messages,
        "max_completion_tokens": asked.max_output_tokens,
        "reasoning_effort": asked.reasoning.effort if asked.reasoning else None,
        "logprobs": wants_logprobs,
        "top_logprobs": asked.top_logprobs if wants_logprobs else None,
        "tools": [tool.spec for tool in toolbox.offered] or None,
        "tool_choice": as_chat_choice(asked),
        "parallel_tool_calls": asked.parallel_tool_calls,
        "response_format": as_chat_format(asked),
        "stream_options": None,  # its fields are not those of chats
    }
    shared = chat.GenerationRequest.__struct_fields__
    return chat.ChatRequest(**{name: getattr(asked, name) for name in shared} | translated)


def drop_earlier_reasoning(items: Sequence[Item]) -> list[Item]:
    """Drops the reasoning before the last user message: the model was not trained to read it."""
    asked = [number for number, item in enumerate(items) if item.role == "user"]
    turn = asked[-1] if asked else 0
    return [item for number, item in enumerate(items) if number > turn or item.type != "reasoning"]


def read_messages(items: Sequence[Item]) -> list[chat.ChatMessage]:
    conversation = ConversationBuilder()
    for item in items:
        if item.type in RESULTS:
            conversation.add(chat.ToolMessage(content=text_of(item.output), tool_call_id=item.call_id))
        elif item.type == "message" and item.role != "assistant":
            conversation.add(SPEAKERS[item.role or "user"](content=text_of(item.content)))
        elif item.type == "message":
            conversation.add_content(text_of(item.content))
        elif item.type == "reasoning":
            conversation.add_reasoning(text_of(item.content))
        elif item.type in CALLS:
            conversation.add_call(chat.ToolCall(id=item.call_id or "", function=as_chat_call(item)))
    return conversation.messages


def as_chat_call(item: Item) -> chat.CalledFunction:
    name = flatten(item.name or "", item.namespace)
    if item.type == "custom_tool_call":
        return chat.CalledWithText(name=name, arguments=item.input or "")
    return chat.CalledFunction(name=name, arguments=item.arguments or "")


def text_of(content: str | Sequence[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)


def as_chat_choice(asked: ResponseRequest) -> Literal["none", "auto", "required"] | chat.NamedChoice | None:
    match asked.tool_choice:
        case FunctionChoice() | CustomChoice() as choice:
            return chat.NamedChoice(function=chat.NamedFunction(name=flatten(choice.name, choice.namespace)))
        case AllowedTools() as choice:
            return choice.mode
        case word:
            return word


def as_chat_format(asked: ResponseRequest) -> chat.AnswerFormat | None:
    wanted = asked.text.format if asked.text else None
    if not isinstance(wanted, SchemaFormat):
        return wanted
    fields = msgspec.structs.asdict(wanted)
    return chat.JsonSchemaFormat(json_schema=chat.JsonSchema(**fields))
