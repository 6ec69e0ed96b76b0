"""The form that an answer must have, as a grammar: JSON, calls, or anything; knows no tokens and no engine."""

from __future__ import annotations

from firesteel.chat.grammar import JSON_OBJECT, grammar_for
from firesteel.chat.harmony import ResponseFormat
from firesteel.errors import RequestError
from firesteel.server.chat.conversation import read_formats, read_tools
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import ChatRequest, JsonFormat, NamedChoice


def find_grammar(asked: ChatRequest) -> str | None:
    """None where the model may write what it likes. Takes milliseconds for large schemas."""
    tools, choice = read_tools(asked.tools or ()), asked.tool_choice
    try:
        return grammar_for(
            tools=tools,
            tool_choice=choice if isinstance(choice, str) and tools else "auto",
            function=choice.function.name if isinstance(choice, NamedChoice) else None,
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            response_format=find_format(asked),
        )
    except RequestError as error:
        param = "response_format" if "response_format" in str(error) else "tools"
        raise ApiError(400, str(error), param=param) from None


def find_format(asked: ChatRequest) -> ResponseFormat | None:
    if isinstance(asked.response_format, JsonFormat):
        return JSON_OBJECT
    return next(iter(read_formats(asked)), None)


def has_form(asked: ChatRequest) -> bool:
    """Whether a grammar may be needed."""
    return bool(asked.tools or asked.response_format)
