"""Rendering of Harmony messages, and messages that are refused."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from firesteel.chat.harmony import (
    Harmony,
    HarmonyError,
    Message,
    ResponseFormat,
    developer_message,
    drop_earlier_reasoning,
    system_message,
)
from firesteel.chat.tokenizer import Tokenizer, TokenizerError


def test_system_message_equals_the_published_one():
    assert system_message(effort="high", date="2025-06-28", has_functions=True).content == (
        "You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: high\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.\n"
        "Calls to these tools must go to the commentary channel: 'functions'."
    )


def test_unknown_effort_is_refused():
    with pytest.raises(HarmonyError, match="low, medium, high"):
        system_message(effort="extreme")


def test_response_formats_come_last_in_the_developer_message():
    formats = [
        ResponseFormat(name="list", schema={"type": "null"}, description="A"),
        ResponseFormat(name="n", schema={}),
    ]
    assert developer_message(instructions="Be brief.", response_formats=formats).content == (
        '# Instructions\n\nBe brief.\n\n# Response Formats\n\n## list\n\n// A\n{"type":"null"}\n\n## n\n\n{}'
    )


def test_reasoning_is_kept_across_tool_calls_and_dropped_after_the_answer():
    think = Message(role="assistant", content="t", channel="analysis")
    call = Message(role="assistant", content="{}", channel="commentary", recipient="functions.f")
    result = Message(role="tool", content="1", name="functions.f", recipient="assistant")
    answer = Message(role="assistant", content="one", channel="final")
    ask = Message(role="user", content="?")
    assert drop_earlier_reasoning([ask, think, call, result]) == [ask, think, call, result]
    assert drop_earlier_reasoning([ask, think, call, result, answer]) == [ask, call, result, answer]
    assert drop_earlier_reasoning([ask, think, answer, ask, think]) == [ask, think, answer, ask, think]
    assert drop_earlier_reasoning([]) == []


def test_tool_message_without_name_is_refused(harmony):
    with pytest.raises(HarmonyError, match="name"):
        harmony.encode([Message(role="tool", content="x")])


@pytest.mark.parametrize("role", ["robot", "", "User"])
def test_unknown_role_is_refused(harmony, role):
    with pytest.raises(HarmonyError, match="unknown role"):
        harmony.encode([Message(role=role, content="x")])
    with pytest.raises(HarmonyError, match="unknown role"):
        harmony.encode_for_completion([], role=role)


@pytest.mark.parametrize(
    "missing", ["start", "end", "message", "channel", "constrain", "return", "call", "endoftext"]
)
def test_missing_special_token_is_named(missing):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    names = ["start", "end", "message", "channel", "constrain", "return", "call", "endoftext"]
    backend.add_special_tokens([f"<|{name}|>" for name in names if name != missing])
    with pytest.raises(TokenizerError, match=rf"<\|{missing}\|>"):
        Harmony(Tokenizer(backend))


def test_rendering_does_not_depend_on_what_was_rendered_before(harmony, tokenizer):
    """Headers and prompts are cached: equal texts in different roles, and callers that edit the result."""
    messages = [Message(role=role, content="user") for role in ("system", "user", "developer", "assistant")]
    first = harmony.encode(messages)
    expected = list(first)
    first[:] = [0] * len(first)
    assert harmony.encode(messages) == expected == Harmony(tokenizer).encode(messages)
    for left, right in pairwise(messages):
        assert harmony.encode([left, right]) == harmony.encode([left]) + harmony.encode([right])
    assert harmony.encode([replace(messages[0], content="")]) != harmony.encode([messages[0]])


def test_last_message_is_left_open_to_be_continued(harmony):
    messages = [
        Message(role="user", content="Hi"),
        Message(role="assistant", channel="analysis", content="Hm."),
        Message(role="assistant", channel="final", content="Hel"),
    ]
    token_ids = harmony.encode_to_continue(messages)
    expected = "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
    assert harmony.tokenizer.decode(token_ids) == expected + "<|start|>assistant<|channel|>final<|message|>Hel"
    assert harmony.tokenizer.decode(harmony.open_channel("final")) == "<|channel|>final<|message|>"
