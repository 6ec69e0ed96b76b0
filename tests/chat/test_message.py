"""A message is the sum of its deltas."""

from firesteel.chat.message import Begin, End, ParsedMessage, TextDelta


def message_of(*deltas):
    message = ParsedMessage()
    for delta in deltas:
        message.add(delta)
    return message


def test_parts_of_a_kind_are_joined():
    message = message_of(
        Begin(index=0, kind="reasoning", header="analysis"),
        TextDelta(index=0, text="a"),
        End(index=0),
        Begin(index=1, kind="content", header="final"),
        TextDelta(index=1, text="b"),
        TextDelta(index=1, text="c"),
        End(index=1),
        Begin(index=2, kind="reasoning", header="analysis"),
        TextDelta(index=2, text="d"),
    )
    assert (message.reasoning, message.content, message.tool_calls) == ("ad", "bc", [])
    assert [part.end is None for part in message.parts] == [False, False, True]


def test_turn_that_stops_after_a_call_finishes_with_tool_calls():
    call = Begin(index=0, kind="tool_call", header="", name="f", call_id="call_1")
    message = message_of(call, TextDelta(index=0, text="{"), TextDelta(index=0, text="}"))
    assert [(part.begin.name, part.text) for part in message.tool_calls] == [("f", "{}")]
    assert message.finish_reason("stop") == "tool_calls"
    assert message.finish_reason("length") == "length"
    assert message_of().finish_reason("stop") == "stop"
