"""Streams of background responses and of stored ones, with the openai client."""

import itertools

import openai
import pytest
from openai import OpenAI

CALL = (
    "<|channel|>analysis<|message|>Weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
    '{"city": "Paris"}<|call|>'
)
TOOLS = [{"type": "function", "name": "look"}, {"type": "custom", "name": "patch"}]


@pytest.fixture
def client(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def ask(client, **fields):
    return client.responses.create(**{"model": "tiny", "input": "hi", **fields})


def kinds_of(events):
    """Returns the kinds of events in order, each run of equal ones once."""
    return [kind for kind, _ in itertools.groupby(event.type for event in events)]


def test_background_response_is_streamed_and_resumed(client, server):
    events = list(ask(client, background=True, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert events[-1].type == "response.completed" and last.output_text == "Hello." and last.background
    assert kinds_of(events) == kinds_of(list(ask(client, stream=True)))
    again = list(client.responses.retrieve(last.id, stream=True, starting_after=4))
    assert again == events[5:]
    assert list(client.responses.retrieve(last.id, stream=True)) == events
    assert list(client.responses.retrieve(last.id, stream=True, starting_after=len(events) - 1)) == []


def test_background_response_goes_on_without_its_client(client, server, eventually):
    server.engine.pause_s = 0.01
    stream = ask(client, background=True, stream=True)
    begun = next(iter(stream))
    stream.close()
    eventually(lambda: client.responses.retrieve(begun.response.id).status == "completed")
    rest = list(client.responses.retrieve(begun.response.id, stream=True, starting_after=begun.sequence_number))
    assert rest[0].sequence_number == 1 and rest[-1].response.output_text == "Hello."


def test_background_response_without_stream_can_be_followed_while_it_runs(client, server):
    server.engine.pause_s = 0.01
    made = ask(client, background=True)
    events = list(client.responses.retrieve(made.id, stream=True))
    assert events[0].type == "response.created" and events[-1].response.output_text == "Hello."


def test_cancelled_response_ends_its_streams(client, server, eventually):
    server.engine.pause_s = 0.05
    stream = iter(ask(client, background=True, stream=True))
    begun = next(stream)
    eventually(lambda: server.engine.num_open == 1)
    client.responses.cancel(begun.response.id)
    last = list(stream)[-1]
    assert last.type == "response.cancelled" and last.response["status"] == "cancelled"


def test_failure_in_the_background_is_the_last_event(client, server):
    server.engine.dies_after = 3
    events = list(ask(client, background=True, stream=True))
    assert events[-1].type == "response.failed" and events[-1].response.error.code == "engine_died"


@pytest.mark.parametrize("script", [CALL, "<|channel|>commentary to=functions.patch<|message|>+a<|call|>"])
def test_stored_response_is_replayed_as_it_was_streamed(client, server, script):
    server.engine.script = script
    streamed = list(ask(client, stream=True, tools=TOOLS, include=["message.output_text.logprobs"]))
    made = streamed[-1].response
    events = list(client.responses.retrieve(made.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds_of(events) == kinds_of(streamed) and events[-1].response == made
    done = {"response.output_item.added", "response.output_item.done", "response.content_part.done"}
    finished = [strip(event) for event in streamed if event.type in done or event.type.endswith("arguments.done")]
    assert [
        strip(event) for event in events if event.type in done or event.type.endswith("arguments.done")
    ] == finished
    assert list(client.responses.retrieve(made.id, stream=True, starting_after=2)) == events[3:]


def strip(event):
    return {name: value for name, value in event.to_dict().items() if name != "sequence_number"}


def test_incomplete_response_is_replayed_as_incomplete(client, server):
    made = ask(client, max_output_tokens=36)
    events = list(client.responses.retrieve(made.id, stream=True))
    assert events[-1].type == "response.incomplete" and events[0].response.incomplete_details is None


@pytest.mark.parametrize(
    "query", ["stream=true&starting_after=-1", "stream=true&starting_after=x", "starting_after=1"]
)
def test_error_names_starting_after(client, server, query):
    made = ask(client)
    answer = server.get(f"/v1/responses/{made.id}?{query}")
    assert answer.status == 400 and answer.error["param"] == "starting_after"


def test_stream_of_an_unknown_response_is_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_none", stream=True)
