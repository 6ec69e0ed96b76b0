"""Requests that need a grammar, and schemas that cannot be enforced."""

import msgspec
import pytest

from firesteel.server.chat.conversation import find_grammar, may_need_grammar
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


def test_schema_that_cannot_be_enforced_is_refused():
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"maxLength": "é" * 60}}}
    with pytest.raises(ApiError) as caught:
        find_grammar(asked(response_format=bad))
    assert caught.value.status == 400 and caught.value.param == "response_format"
    assert "maxLength must be a number, not 'ééé" in str(caught.value)
