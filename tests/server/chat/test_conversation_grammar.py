"""Requests that need a grammar, and schemas that cannot be enforced."""

import msgspec
import pytest

from firesteel.server.chat.conversation import find_grammar, may_need_grammar, render_chat
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import ChatRequest

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


def asked(**fields):
    return msgspec.convert({"messages": [{"role": "user", "content": "a"}], **fields}, ChatRequest)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"tool_choice": "none"},
    ],
)
def test_free_answers_have_no_grammar(fields):
    assert find_grammar(asked(**fields)) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [STRICT]},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"response_format": SCHEMA},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_required_forms_have_a_grammar(fields):
    request = asked(**fields)
    assert may_need_grammar(request) and "\nstart:" in find_grammar(request).text


def allow(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_only_allowed_tools_are_shown_and_may_be_called():
    other = {"type": "function", "function": {"name": "smell"}}
    request = asked(tools=[TOOL, other], tool_choice=allow("required", "smell"))
    assert list(find_grammar(request).rules) == ["tool 'smell'"]
    prompt = render_chat(request)[1].content
    assert "type smell" in prompt and "type look" not in prompt
    assert find_grammar(asked(tools=[TOOL, other], tool_choice=allow("auto", "smell"))) is None
    with pytest.raises(ApiError, match="allows hear, which is not in tools") as caught:
        find_grammar(asked(tools=[TOOL], tool_choice=allow("auto", "hear")))
    assert caught.value.param == "tool_choice"


def test_named_function_is_called_once():
    named = {"type": "function", "function": {"name": "look"}}
    repeated = "<|end|> opening)*"
    assert repeated not in find_grammar(asked(tools=[TOOL], tool_choice=named)).text
    assert repeated in find_grammar(asked(tools=[TOOL], tool_choice="required")).text


def test_schema_that_cannot_be_enforced_is_refused():
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"maxLength": "é" * 60}}}
    with pytest.raises(ApiError) as caught:
        find_grammar(asked(response_format=bad))
    assert caught.value.status == 400 and caught.value.param == "response_format"
    assert "maxLength must be a number, not 'ééé" in str(caught.value)
