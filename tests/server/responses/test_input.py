"""Requests to /v1/responses become equivalent chat requests."""

import msgspec
import pytest

from firesteel.server.chat.conversation import render_chat
from firesteel.server.http.errors import ApiError
from firesteel.server.openai import requests as chat
from firesteel.server.openai.limits import MAX_MESSAGES
from firesteel.server.responses.input import as_chat, check_supported, read_items
from firesteel.server.responses.schema import Item, ResponseRequest
from firesteel.server.responses.toolbox import Toolbox, open_toolbox


def read(**fields):
    asked = msgspec.convert({"input": "hi", **fields}, ResponseRequest)
    items = read_items(asked)
    return as_chat(asked, items, open_toolbox(asked, items))


def rendered(items):
    """Returns (role or name, channel, recipient, content) of each message after the system message."""
    messages = render_chat(read(input=items))[1:]
    return [
        (message.name or message.role, message.channel, message.recipient, message.content) for message in messages
    ]


def test_a_text_is_a_users_message():
    assert read().messages == [chat.UserMessage(content="hi")]


def test_instructions_come_before_the_input():
    assert read(instructions="Be kind.").messages[0] == chat.DeveloperMessage(content="Be kind.")


def test_messages_may_omit_their_type_and_have_parts():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    items = [{"role": "user", "content": parts}, {"type": "message", "role": "assistant", "content": "c"}]
    assert rendered(items) == [("user", None, None, "ab"), ("assistant", "final", None, "c")]


def test_a_turn_with_calls_is_rendered_in_its_order():
    items = [
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Look it up."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One moment."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "smell", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "wet"}]},
    ]
    assert rendered(items) == [
        ("user", None, None, "weather?"),
        ("assistant", "analysis", None, "Look it up."),
        ("assistant", "commentary", None, "One moment."),
        ("assistant", "commentary", "functions.look", "{}"),
        ("assistant", "commentary", "functions.smell", "{}"),
        ("functions.look", "commentary", "assistant", "rain"),
        ("functions.smell", "commentary", "assistant", "wet"),
    ]


def test_reasoning_after_a_call_is_not_moved_before_it():
    items = [
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Now?"}]},
        {"role": "assistant", "content": "Yes."},
    ]
    assert [content for *_, content in rendered(items)] == ["{}", "Now?", "Yes."]


def test_reasoning_of_earlier_turns_is_dropped_and_of_this_one_kept():
    def thought(text):
        return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}

    items = [
        {"role": "user", "content": "a"},
        thought("old"),
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        thought("new"),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "d"},
    ]
    assert [content for *_, content in rendered(items)] == ["a", "b", "c", "new", "{}", "d"]


@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({"role": "user"}, "input[1].content"),
        ({"content": "a"}, "input[1].role"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[1].name"),
        ({"type": "function_call_output", "call_id": "c"}, "input[1].output"),
    ],
)
def test_error_names_the_missing_field_of_an_item(item, place):
    with pytest.raises(ApiError) as raised:
        read(input=[{"role": "user", "content": "a"}, item])
    assert raised.value.param == place and raised.value.status == 400


def test_formats_tools_and_limits_reach_the_chat():
    tool = {
        "type": "function",
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object"},
        "strict": True,
    }
    asked = read(
        tools=[tool],
        tool_choice={"type": "function", "name": "look"},
        max_output_tokens=7,
        temperature=0.5,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        reasoning={"effort": "high"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert asked.tools[0].function == chat.FunctionSpec(
        name="look", description="Looks.", parameters={"type": "object"}, strict=True
    )
    assert asked.tool_choice.function.name == "look" and asked.response_format.json_schema.schema == {
        "type": "object"
    }
    assert (asked.max_completion_tokens, asked.temperature, asked.reasoning_effort) == (7, 0.5, "high")
    assert (asked.logprobs, asked.top_logprobs) == (True, 2)


def test_only_allowed_tools_are_shown_to_the_model():
    tools = [{"type": "function", "name": name} for name in ("a", "b")]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "b"}]}
    asked = read(tools=tools, tool_choice=allowed)
    assert [tool.function.name for tool in asked.tools] == ["b"] and asked.tool_choice == "required"
    allowed["tools"][0]["name"] = "c"
    with pytest.raises(ApiError, match="allows c"):
        read(tools=tools, tool_choice=allowed)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tokens": 7}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"request_id": "a"}, "request_id"),
        ({"background": True, "store": False}, "store"),
    ],
)
def test_error_names_the_unsupported_field(fields, param):
    with pytest.raises(ApiError) as raised:
        check_supported(msgspec.convert({"input": "hi", **fields}, ResponseRequest))
    assert raised.value.param == param


def test_items_of_earlier_responses_count():
    asked = ResponseRequest(input="hi")
    item = Item(role="user", content="hi")
    assert len(as_chat(asked, [item] * MAX_MESSAGES, Toolbox()).messages) == MAX_MESSAGES
    with pytest.raises(ApiError, match="8193 input items"):
        as_chat(asked, [item] * (MAX_MESSAGES + 1), Toolbox())
