"""Pieces of a turn become items and events."""

import random

import pytest

from firesteel.chat.harmony import Harmony
from firesteel.chat.message import Begin, End, TextDelta
from firesteel.server.generate.choice import ChatReader, ChoicePiece
from firesteel.server.responses.answers import InputDetails, OutputDetails, Response, ResponseUsage
from firesteel.server.responses.output import ResponseWriter
from firesteel.server.responses.schema import Reasoning, TextOptions
from firesteel.types import SamplingParams, StepOutput

USAGE = ResponseUsage(
    input_tokens=1,
    input_tokens_details=InputDetails(cached_tokens=0),
    output_tokens=1,
    output_tokens_details=OutputDetails(reasoning_tokens=0),
    total_tokens=2,
)


def new_writer():
    return ResponseWriter(
        Response(
            id="resp_1",
            created_at=0,
            model="m",
            status="in_progress",
            tools=[],
            tool_choice="auto",
            text=TextOptions(),
            reasoning=Reasoning(),
            parallel_tool_calls=True,
            store=True,
            temperature=1.0,
            top_p=1.0,
            top_logprobs=0,
            truncation="disabled",
        )
    )


def write(*pieces):
    """Returns all events, and the response."""
    writer = new_writer()
    events = [*writer.begin(), *(event for piece in pieces for event in writer.push(piece)), *writer.finish(USAGE)]
    return events, writer.response


def part(index, kind, text="", **more):
    begin = Begin(index=index, kind=kind, header="", **more)
    return [begin, *([TextDelta(index=index, text=text)] if text else []), End(index=index, closed_by="<|end|>")]


def test_part_without_text_is_not_an_item_but_a_call_is():
    empty = ChoicePiece(
        deltas=[*part(0, "reasoning"), *part(1, "content"), *part(2, "tool_call", name="f", call_id="c")]
    )
    events, response = write(empty)
    [call] = response.output
    assert (call.name, call.call_id, call.arguments, call.status) == ("f", "c", "", "completed")
    assert [event.output_index for event in events if hasattr(event, "output_index")] == [0, 0, 0]


def test_what_was_sent_does_not_change_afterwards():
    writer = new_writer()
    created, _ = writer.begin()
    added, *_ = writer.push(ChoicePiece(deltas=part(0, "content", "a")))
    writer.finish(USAGE)
    assert created.response.status == "in_progress" and created.response.output == []
    assert added.item.status == "in_progress" and added.item.content == []


def test_text_that_ends_with_the_stream_is_complete_unless_truncated():
    open_part = part(0, "content", "a")[:2]
    for reason, status in (("stop", "completed"), ("length", "incomplete")):
        _, response = write(ChoicePiece(deltas=open_part, finish_reason=reason))
        assert response.status == response.output[0].status == status
        cut = [*open_part, End(index=0, closed_by=None)]
        assert write(ChoicePiece(deltas=cut, finish_reason=reason))[1].output[0].status == status


def test_failure_and_cancel_keep_earlier_output():
    writer = new_writer()
    writer.push(ChoicePiece(deltas=part(0, "content", "a")[:2]))
    [*_, failed] = writer.fail("engine_died", "it died")
    assert failed.type == "response.failed" and failed.response.output[0].content[0].text == "a"
    writer = new_writer()
    writer.push(ChoicePiece(deltas=part(0, "content", "a")[:2]))
    writer.cancel()
    assert writer.response.status == "cancelled" and writer.response.output[0].status == "incomplete"


def assemble(events):
    """Returns the texts of the items from the events alone; checks that each event is allowed at its place."""
    texts, is_open = [], False
    for event in events:
        match event.type.removeprefix("response."):
            case "output_item.added":
                assert not is_open and event.output_index == len(texts)
                texts.append("")
                is_open = True
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta":
                assert is_open and event.output_index == len(texts) - 1 and event.delta
                texts[-1] += event.delta
            case "output_text.done" | "reasoning_text.done":
                assert event.text == texts[-1]
            case "function_call_arguments.done":
                assert event.arguments == texts[-1]
            case "output_item.done":
                assert is_open
                is_open = False
    assert not is_open
    return texts


@pytest.mark.parametrize("seed", range(40))
def test_events_of_any_tokens_join_to_the_response(tokenizer, seed):
    chance = random.Random(seed)
    marks = list(tokenizer.special_ids.values())
    words = [
        tokenizer.encode(word) for word in ("assistant", "analysis", "final", "commentary to=functions.f", " a")
    ]
    tokens = []
    for _ in range(60):
        tokens += chance.choice(words) if chance.random() < 0.5 else [chance.choice(marks)]
    harmony = Harmony(tokenizer)
    reader = ChatReader(harmony, SamplingParams(stop=("final a",)))
    pieces = []
    for number, token in enumerate(tokens):
        reason = "length" if number + 1 == len(tokens) else None
        pieces.append(
            reader.push(StepOutput(request_id="r", token_ids=[token], finish_reason=reason, num_cached=0))
        )
        if pieces[-1].finish_reason:
            break
    events, response = write(*pieces)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == f"response.{response.status}"
    assert assemble(events) == [getattr(item, "arguments", None) or spoken(item) for item in response.output]


def spoken(item):
    return "" if not hasattr(item, "content") else item.content[0].text
