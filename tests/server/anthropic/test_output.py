"""Pieces of a model's turn as blocks and events of a message."""

import pytest

from firesteel.chat.message import Begin, End, TextDelta
from firesteel.server.anthropic.answers import AnthropicMessage, MessageUsage, ThinkingCount, name_of
from firesteel.server.anthropic.output import MALFORMED, MessageWriter, find_stop_reason, read_arguments
from firesteel.server.anthropic.signature import SHOWN, read_signature
from firesteel.server.generate.choice import ChoicePiece

USAGE = MessageUsage(
    input_tokens=3,
    cache_read_input_tokens=2,
    output_tokens=1,
    output_tokens_details=ThinkingCount(thinking_tokens=0),
)
TURN = [
    Begin(index=0, kind="reasoning", header=""),
    TextDelta(index=0, text="H"),
    TextDelta(index=0, text="m."),
    End(index=0, closed_by="<|end|>"),
    Begin(index=1, kind="content", header="", channel="commentary"),
    TextDelta(index=1, text="Wait."),
    End(index=1, closed_by="<|end|>"),
    Begin(index=2, kind="tool_call", header="", name="look", call_id="c1"),
    TextDelta(index=2, text='{"a":'),
    TextDelta(index=2, text="1}"),
    End(index=2, closed_by="<|call|>"),
]


def write(deltas, thinking="shown", **last):
    """Returns all events and the message, with one piece per delta."""
    writer = MessageWriter(AnthropicMessage(id="msg_1", model="m", usage=USAGE), thinking)
    events = writer.begin(USAGE)
    for delta in deltas:
        events += writer.push(ChoicePiece(deltas=[delta]))
    events += writer.push(ChoicePiece(**{"finish_reason": "stop", **last}))
    return [*events, *writer.finish(USAGE, is_context_full=False)], writer.message


def names(events):
    return [name_of(event) for event in events]


def test_events_are_those_of_the_api():
    events, _ = write(TURN, finish_reason="tool_calls")
    part = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert names(events) == [
        "message_start",
        "ping",
        *(part[0], part[1], part[1], part[1], part[2]),  # two texts and the signature
        *part,
        *(part[0], part[1], part[1], part[2]),
        "message_delta",
        "message_stop",
    ]
    assert [event.index for event in events if hasattr(event, "index")] == [0] * 5 + [1] * 3 + [2] * 4
    assert events[0].message.content == [] and events[0].message.stop_reason is None
    assert events[-2].delta.stop_reason == "tool_use" and events[-2].usage == USAGE


def test_whole_message_is_the_sum_of_its_events():
    _, message = write(TURN)
    thinking, text, call = message.content
    assert (thinking.thinking, thinking.signature, text.text) == ("Hm.", SHOWN, "Wait.")
    assert (call.id, call.name, call.input) == ("c1", "look", {"a": 1})


def test_texts_that_come_together_are_one_event():
    writer = MessageWriter(AnthropicMessage(id="msg_1", model="m", usage=USAGE), "shown")
    events = writer.push(ChoicePiece(deltas=TURN[:3]))
    assert names(events) == ["content_block_start", "content_block_delta"] and events[1].delta.thinking == "Hm."


def test_hidden_thinking_has_no_block():
    events, message = write(TURN, "hidden")
    assert [type(block).__name__ for block in message.content] == ["TextAnswer", "ToolUseAnswer"]
    assert max(event.index for event in events if hasattr(event, "index")) == 1


def test_omitted_thinking_has_a_block_whose_signature_carries_the_text():
    events, message = write(TURN, "omitted")
    assert message.content[0].thinking == "" and read_signature(message.content[0].signature) == "Hm."
    assert names(events)[2:5] == ["content_block_start", "content_block_delta", "content_block_stop"]
    assert events[3].delta.signature == message.content[0].signature


def test_parts_without_text_have_no_block_except_calls():
    empty = [delta for delta in TURN if not isinstance(delta, TextDelta)]
    [call] = write(empty)[1].content
    assert call.name == "look" and call.input == {}


def test_part_that_is_cut_is_closed():
    events, message = write(TURN[:2], finish_reason="length")
    assert message.content[0].thinking == "H" and message.stop_reason == "max_tokens"
    assert "content_block_stop" in names(events)


@pytest.mark.parametrize("text", ['{"a": ', "[1]", "look at this", '"x"'])
def test_malformed_arguments_are_kept_as_text(text):
    assert read_arguments(text) == {MALFORMED: text}


@pytest.mark.parametrize(
    ("finish", "stop", "is_full", "reason"),
    [
        ("stop", None, False, "end_turn"),
        ("stop", "END", False, "stop_sequence"),
        ("tool_calls", None, False, "tool_use"),
        ("length", None, False, "max_tokens"),
        ("length", None, True, "model_context_window_exceeded"),
        ("content_filter", None, False, "refusal"),
    ],
)
def test_stop_reasons(finish, stop, is_full, reason):
    piece = ChoicePiece(finish_reason=finish, stop_reason=stop)
    assert find_stop_reason(piece, is_context_full=is_full) == reason
