"""Chat messages as Harmony: instructions, calls and their results, dates, and what is refused."""

import datetime

import msgspec
import pytest

from firesteel.server.chat.conversation import find_date, render_chat
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import ChatRequest

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}


def render(*messages, prompt_date="none", **fields):
    asked = msgspec.convert({"messages": list(messages), **fields}, ChatRequest)
    return render_chat(asked, prompt_date=prompt_date)


def user(text):
    return {"role": "user", "content": text}


def test_system_and_developer_prompts_are_harmonys_developer_message():
    system, developer, question = render(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
        user("Who?"),
    )
    assert system.role == "system" and system.content.startswith("You are ChatGPT")
    assert developer.role == "developer" and developer.content == "# Instructions\n\nBe brief.\n\nBe kind."
    assert (question.role, question.content) == ("user", "Who?")


def test_later_system_prompt_keeps_its_place():
    roles = [message.role for message in render(user("a"), {"role": "system", "content": "b"}, user("c"))]
    assert roles == ["system", "user", "developer", "user"]


def test_call_and_its_result_are_in_the_commentary_channel():
    assistant = {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "seen"}
    thought, call, answer = render(user("a"), assistant, result)[2:]
    assert (thought.channel, thought.content) == ("analysis", "I look.")
    assert (call.channel, call.recipient, call.content) == ("commentary", "functions.look", '{"a":1}')
    assert call.content_type == "<|constrain|>json"
    assert (answer.role, answer.name, answer.recipient) == ("tool", "functions.look", "assistant")
    assert (answer.channel, answer.content) == ("commentary", "seen")


def test_text_before_a_call_is_a_preamble():
    assistant = {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]}
    preamble, _ = render(user("a"), assistant)[2:]
    assert (preamble.channel, preamble.content, preamble.recipient) == ("commentary", "Let me see.", None)


def test_answer_is_final_and_its_reasoning_may_have_either_name():
    thought, final = render(user("a"), {"role": "assistant", "content": "b", "reasoning": "hm"})[2:]
    assert (thought.channel, final.channel, final.content) == ("analysis", "final", "b")


def test_result_without_a_call_is_refused():
    with pytest.raises(ApiError) as caught:
        render({"role": "tool", "tool_call_id": "c9", "content": "x"})
    assert caught.value.status == 400 and "c9" in str(caught.value)


def test_tools_are_shown_unless_none_may_be_called():
    shown = render(user("a"), tools=[TOOL])
    assert "type look = " in shown[1].content and "'functions'" in shown[0].content
    hidden = render(user("a"), tools=[TOOL], tool_choice="none")
    assert [message.role for message in hidden] == ["system", "user"] and "'functions'" not in hidden[0].content


def test_schema_of_the_answer_is_shown():
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": {"type": "object"}}}
    assert "# Response Formats\n\n## place" in render(user("a"), response_format=form)[1].content


@pytest.mark.parametrize(
    ("effort", "shown"), [(None, "medium"), ("minimal", "low"), ("high", "high"), ("none", "low")]
)
def test_effort_is_mapped_to_one_of_harmonys(effort, shown):
    assert f"Reasoning: {shown}" in render(user("a"), reasoning_effort=effort)[0].content
    assert f"Reasoning: {shown}" in render(user("a"), chat_template_kwargs={"reasoning_effort": effort})[0].content


def test_date_is_omitted_by_default_so_that_midnight_changes_no_prefix():
    assert "Current date" not in render(user("a"))[0].content
    assert "Current date: 2026-01-31" in render(user("a"), prompt_date="2026-01-31")[0].content
    assert find_date("today") == datetime.datetime.now(datetime.UTC).date().isoformat()


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize("schema", [deep(200), {"type": "integer", "default": 10**400}], ids=["deep", "huge"])
def test_unreadable_schema_is_refused_with_its_place(schema):
    """Recursion or an overflow would be a server error."""
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    with pytest.raises(ApiError, match="the schema cannot be read") as caught:
        render(user("a"), tools=[TOOL | {"function": TOOL["function"] | {"name": "other"}}, tool])
    assert (caught.value.status, caught.value.param) == (400, "tools[1].function.parameters")
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(ApiError, match="the schema cannot be read") as caught:
        render(user("a"), response_format=answer)
    assert caught.value.param == "response_format.json_schema.schema"


def test_deepest_accepted_schema_is_rendered():
    tool = {"type": "function", "function": {"name": "look", "parameters": deep(63)}}
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": deep(63)}}
    developer = render(user("a"), tools=[tool], response_format=answer)[1]
    assert developer.content.count('{"type":"string"}') == 1
