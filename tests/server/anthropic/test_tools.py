"""Tools of a request to /v1/messages as those of a chat."""

import logging

import msgspec
import pytest

from firesteel.server.anthropic.schema import AnthropicTool, PromptRequest
from firesteel.server.anthropic.tools import find_places, may_call_in_parallel, read_choice, read_tools
from firesteel.server.http.errors import ApiError

SEARCH = AnthropicTool(type="web_search_20250305", name="web_search")
LOOK = AnthropicTool(name="look", description="Look.", input_schema={"type": "object"}, strict=True)


def choose(choice):
    asked = msgspec.convert({"messages": [{"role": "user", "content": "hi"}], "tool_choice": choice}, PromptRequest)
    return read_choice(asked), may_call_in_parallel(asked)


def test_custom_tools_become_functions():
    [tool] = read_tools([LOOK])
    function = tool.function
    assert (function.name, function.description, function.strict) == ("look", "Look.", True)
    assert function.parameters == {"type": "object"}
    assert read_tools([AnthropicTool(type="custom", name="a", input_schema={})])[0].function.name == "a"


def test_tools_of_anthropic_are_left_out_beside_custom_ones(caplog):
    with caplog.at_level(logging.WARNING):
        assert [tool.function.name for tool in read_tools([SEARCH, LOOK])] == ["look"]
    [record] = caplog.records
    assert record.tools == ["web_search_20250305"]
    assert find_places([SEARCH, LOOK]) == [1]


def test_tools_of_anthropic_alone_are_refused():
    with pytest.raises(ApiError, match=r"'web_search_20250305'.*custom") as caught:
        read_tools([SEARCH])
    assert caught.value.status == 400 and caught.value.param == "tools"


def test_custom_tool_needs_a_schema():
    with pytest.raises(ApiError, match=r"tools\[1\]\.input_schema: required"):
        read_tools([LOOK, AnthropicTool(name="bare")])


def test_choices_have_their_equivalents():
    assert choose(None) == (None, True) and choose({"type": "auto"}) == ("auto", True)
    assert choose({"type": "any", "disable_parallel_tool_use": True}) == ("required", False)
    assert choose({"type": "none"}) == ("none", True)
    named, _ = choose({"type": "tool", "name": "look"})
    assert named.function.name == "look"
