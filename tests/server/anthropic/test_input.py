"""A request to /v1/messages as the equivalent chat."""

import msgspec
import pytest

from firesteel.server.anthropic.input import as_chat
from firesteel.server.anthropic.schema import CountRequest, MessageRequest
from firesteel.server.anthropic.signature import sign
from firesteel.server.chat.conversation import render_chat
from firesteel.server.http.errors import ApiError

USER = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "c1", "name": "look", "input": {"city": "Paris", "n": [1, None]}}
THOUGHT = {"type": "thinking", "thinking": "Look it up.", "signature": "x"}


def ask(messages=(USER,), **fields):
    return as_chat(msgspec.convert({"max_tokens": 9, "messages": list(messages), **fields}, MessageRequest))


def render(*args, **fields):
    """Returns (author, channel, content) of the conversation after Harmony's system message."""
    messages = render_chat(ask(*args, **fields))[1:]
    return [(message.name or message.role, message.channel, message.content) for message in messages]


def result(content, **fields):
    return {"type": "tool_result", "tool_use_id": "c1", "content": content, **fields}


def turns(*contents):
    """Returns messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]


def test_fields_of_sampling_are_passed_on():
    chat = ask(stop_sequences=["END"], temperature=0.5, top_p=0.25, top_k=7, stream=True, metadata={"user_id": "u"})
    assert (chat.max_tokens, chat.stop, chat.temperature, chat.top_p, chat.top_k) == (9, ["END"], 0.5, 0.25, 7)
    assert chat.stream is True


def test_system_prompts_are_instructions():
    assert render(system="Be kind.")[0] == ("developer", None, "# Instructions\n\nBe kind.")
    parts = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in ("A", "B")]
    assert render(system=parts)[0][2] == "# Instructions\n\nA\n\nB"


def test_facts_for_accounting_do_not_reach_the_prompt():
    parts = [{"type": "text", "text": text} for text in ("x-anthropic-billing-header: cc_version=1.c40;", "Hi")]
    assert render(system=parts)[0][2] == "# Instructions\n\nHi"


def test_instructions_within_a_conversation_keep_their_place():
    rendered = render([USER, {"role": "system", "content": "Be brief."}])
    assert rendered == [("user", None, "hi"), ("developer", None, "# Instructions\n\nBe brief.")]


def test_call_its_result_and_the_thought_before_are_rendered_in_order():
    rendered = render(turns("hi", [THOUGHT, {"type": "text", "text": "One moment."}, CALL], [result("sunny")]))
    assert rendered == [
        ("user", None, "hi"),
        ("assistant", "analysis", "Look it up."),
        ("assistant", "commentary", "One moment."),
        ("assistant", "commentary", '{"city":"Paris","n":[1,null]}'),
        ("functions.look", "commentary", "sunny"),
    ]


def test_texts_beside_results_stay_in_order():
    parts = [{"type": "text", "text": text} for text in ("a", "b")]
    rendered = render(turns("hi", [CALL], [result("r"), *parts]))
    assert [message[2] for message in rendered[-2:]] == ["r", "ab"]


@pytest.mark.parametrize(
    ("content", "fields", "text"),
    [
        (None, {}, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], {}, "ab"),
        ("no such city", {"is_error": True}, "Error: no such city"),
        ("fine", {"is_error": False}, "fine"),
    ],
)
def test_result_is_text(content, fields, text):
    assert render(turns("hi", [CALL], [result(content, **fields)]))[-1][2] == text


def test_thoughts_before_the_last_question_are_dropped():
    rendered = render(turns("hi", [THOUGHT, CALL], [result("r")], [THOUGHT, {"type": "text", "text": "a"}], "and?"))
    assert "analysis" not in [channel for _, channel, _ in rendered]


def test_thoughts_are_kept_across_results_with_texts():
    reminder = {"type": "text", "text": "<system-reminder>"}
    assert ("assistant", "analysis", "Look it up.") in render(turns("hi", [THOUGHT, CALL], [result("r"), reminder]))


def test_hidden_thought_is_read_from_its_signature():
    hidden = {"type": "thinking", "thinking": "", "signature": sign("Secret.", is_shown=False)}
    assert ("assistant", "analysis", "Secret.") in render(turns("hi", [hidden, CALL], [result("r")]))
    hidden["signature"] += "#"
    with pytest.raises(ApiError, match="damaged") as caught:
        ask(turns("hi", [hidden, CALL], [result("r")]))
    assert caught.value.param == "messages[1].content[0].signature"


def test_encrypted_thought_is_left_out():
    rendered = render(turns("hi", [{"type": "redacted_thinking", "data": "x"}, CALL], [result("r")]))
    assert [channel for _, channel, _ in rendered] == [None, "commentary", "commentary"]


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "disabled"}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4097}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 16385}}, "high"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "medium"}}, "medium"),
        ({"output_config": {"effort": "max"}}, "xhigh"),
    ],
)
def test_effort_is_that_given_or_that_of_the_budget(fields, effort):
    assert ask(**fields).reasoning_effort == effort


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_format_of_the_answer_is_strict(place):
    form = {"type": "json_schema", "schema": {"type": "object"}}
    wanted = ask(**{place: {"format": form} if place == "output_config" else form}).response_format
    assert wanted.json_schema.strict and wanted.json_schema.schema == {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
        ({"messages": turns("hi", "Once upon")}, "messages"),
        (
            {"messages": turns("hi", [CALL], [{**result("r"), "tool_use_id": "c2"}])},
            "messages[2].content[0].tool_use_id",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(fields, param):
    with pytest.raises(ApiError) as caught:
        ask(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_clearing_earlier_thoughts_is_what_happens_anyway():
    assert ask(context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}).messages
    assert ask(mcp_servers=[], context_management={}).messages


def test_a_count_needs_no_limit():
    assert as_chat(msgspec.convert({"messages": [USER]}, CountRequest)).max_tokens is None
