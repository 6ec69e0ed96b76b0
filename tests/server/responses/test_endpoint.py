"""The endpoints under /v1/responses with the openai client: a scripted engine, and the shipped model."""

import json
import time
from typing import Literal

import openai
import pydantic
import pytest
from openai import OpenAI

CALL = (
    "<|channel|>analysis<|message|>Weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
    '{"city": "Paris"}<|call|>'
)
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
FRANCE = "What is the capital of France? Please reply with one word only"


@pytest.fixture
def connect():
    """connect(url): a client, closed after the test."""
    clients = []

    def open_it(url, api_key="none"):
        clients.append(OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0))
        return clients[-1]

    yield open_it
    for client in clients:
        client.close()


@pytest.fixture
def client(connect, server):
    return connect(server.url)


def ask(client, **fields):
    return client.responses.create(**{"model": "tiny", "input": "hi", **fields})


def test_a_response_has_reasoning_text_and_usage(client, server):
    made = ask(client, instructions="Be kind.", metadata={"a": "b"}, temperature=0.5)
    assert made.output_text == "Hello." and made.status == "completed" and made.id.startswith("resp_")
    reasoning, message = made.output
    assert reasoning.type == "reasoning" and reasoning.content[0].text == "Hm."
    assert message.phase == "final_answer" and message.status == "completed"
    assert (made.instructions, made.metadata, made.temperature, made.error) == ("Be kind.", {"a": "b"}, 0.5, None)
    prompt = server.engine.requests[0]
    assert made.usage.input_tokens == prompt.num_prompt and made.usage.input_tokens_details.cached_tokens == 2
    assert made.usage.output_tokens == 38 and made.usage.output_tokens_details.reasoning_tokens == 3
    assert "Be kind." in server.engine.tokenizer.decode(prompt.token_ids)


def test_events_are_in_order_and_join_to_the_whole(client):
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    shape = [kind for number, kind in enumerate(kinds) if kinds[number - 1] != kind or not number]
    item = [
        "output_item.added",
        "content_part.added",
        "{0}.delta",
        "{0}.done",
        "content_part.done",
        "output_item.done",
    ]
    assert shape == [
        "created",
        "in_progress",
        *(name.format("reasoning_text") for name in item),
        *(name.format("output_text") for name in item),
        "completed",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response
    assert text == last.output_text == "Hello." and last.usage.output_tokens == 38
    assert {event.output_index for event in events if hasattr(event, "output_index")} == {0, 1}
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == last.output


def test_stream_equals_the_whole_response(client):
    whole = ask(client).to_dict()
    streamed = list(ask(client, stream=True))[-1].response.to_dict()
    assert strip(whole) == strip(streamed)


def strip(response):
    """Removes what differs between responses: ids and times."""
    kept = {name: value for name, value in response.items() if name not in ("id", "created_at")}
    return {**kept, "output": [{**item, "id": "", "call_id": ""} for item in response["output"]]}


def test_calls_are_items_and_their_results_go_back(connect, open_server):
    server = open_server(CALL)
    client = connect(server.url)
    first = ask(client, input=[{"role": "user", "content": "weather?"}], tools=[TOOL])
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call = first.output[-1]
    assert (call.name, json.loads(call.arguments), call.status) == ("look", {"city": "Paris"}, "completed")
    assert first.output[1].phase == "commentary" and first.output_text == "One moment."
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    ask(client, input=[{"role": "user", "content": "weather?"}, *first.output, result], tools=[TOOL], store=False)
    stateless = server.engine.requests[-1].token_ids
    ask(client, input=[result], tools=[TOOL], previous_response_id=first.id)
    assert server.engine.requests[-1].token_ids == stateless
    assert server.engine.tokenizer.decode(stateless).endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Weather.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
        "<|start|>assistant to=functions.look<|channel|>commentary <|constrain|>json<|message|>"
        '{"city": "Paris"}<|call|>'
        "<|start|>functions.look to=assistant<|channel|>commentary<|message|>rain<|end|><|start|>assistant"
    )


def test_arguments_are_streamed(connect, open_server):
    with connect(open_server(CALL).url).responses.stream(model="tiny", input="weather?", tools=[TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done.arguments == final.output[-1].arguments == '{"city": "Paris"}'
    assert len(deltas) > 3


def test_truncated_response_is_incomplete(client):
    made = ask(client, max_output_tokens=36)
    assert made.status == "incomplete" and made.incomplete_details.reason == "max_output_tokens"
    assert made.output[-1].status == "incomplete" and made.output[0].status == "completed"
    assert [event.type for event in ask(client, max_output_tokens=36, stream=True)][-1] == "response.incomplete"


def test_logprobs_come_with_the_text_if_requested(client):
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = ask(client, **wanted).output[-1].content[0]
    assert len(part.logprobs) == len("Hello.") and len(part.logprobs[0].top_logprobs) == 2
    deltas = [event for event in ask(client, stream=True, **wanted) if event.type == "response.output_text.delta"]
    assert sum(len(event.logprobs) for event in deltas) == len("Hello.")
    assert ask(client).output[-1].content[0].logprobs == []


def test_a_response_is_found_listed_and_deleted(client):
    made = ask(client)
    assert client.responses.retrieve(made.id).output_text == "Hello."
    [given] = client.responses.input_items.list(made.id).data
    assert given.role == "user" and given.content[0].text == "hi"
    client.responses.delete(made.id)
    for again in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            again(made.id)


def test_response_with_store_false_is_not_found(client, connect, open_server):
    made = ask(client, store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, previous_response_id=made.id)
    assert raised.value.param == "previous_response_id" and raised.value.code == "previous_response_not_found"
    forgetful = connect(open_server(response_store_mib=0.0).url)
    with pytest.raises(openai.NotFoundError):
        forgetful.responses.retrieve(ask(forgetful).id)


def test_instructions_are_not_carried_over_but_the_conversation_is(client, server):
    first = ask(client, input="one", instructions="Be kind.")
    second = ask(client, input="two", previous_response_id=first.id)
    ask(client, input="three", previous_response_id=second.id)
    prompt = server.engine.tokenizer.decode(server.engine.requests[-1].token_ids)
    assert "Be kind." not in prompt and "analysis<|message|>Hm." not in prompt
    places = [prompt.index(text) for text in ("one<|end|>", "two<|end|>", "three<|end|>")]
    assert places == sorted(places) and prompt.count("Hello.") == 2


def test_background_response_is_found_when_complete(client, server):
    server.engine.pause_s = 0.01
    made = ask(client, background=True)
    assert made.status == "in_progress" and made.output == []
    with pytest.raises(openai.BadRequestError, match="still being generated"):
        ask(client, previous_response_id=made.id)
    deadline = time.monotonic() + 20
    while (response := client.responses.retrieve(made.id)).status == "in_progress" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert response.status == "completed" and response.output_text == "Hello." and response.background


def test_background_response_can_be_cancelled(client, server, eventually):
    server.engine.pause_s = 0.2
    made = ask(client, background=True)
    eventually(lambda: server.engine.num_open == 1)
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).status == "cancelled"
    eventually(lambda: server.engine.num_open == 0)
    with pytest.raises(openai.BadRequestError, match="background"):
        server.engine.pause_s = 0
        client.responses.cancel(ask(client).id)


def test_deleting_an_unfinished_response_ends_it(client, server, eventually):
    server.engine.pause_s = 0.2
    made = ask(client, background=True)
    eventually(lambda: server.engine.num_open == 1)
    client.responses.delete(made.id)
    eventually(lambda: server.engine.num_open == 0)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_failure_after_the_first_event_is_an_event(client, server):
    server.engine.dies_after = 30
    events = list(ask(client, stream=True))
    failed = events[-1]
    assert failed.type == "response.failed" and failed.response.status == "failed"
    assert failed.response.error.code == "engine_died" and "secret" not in failed.response.error.message
    assert failed.response.output[0].content[0].text == "Hm."
    server.engine.dies_after = 0
    with pytest.raises(openai.InternalServerError):
        ask(client, stream=True)


def test_failure_in_the_background_is_stored(client, server, eventually):
    server.engine.dies_after = 3
    made = ask(client, background=True)
    eventually(lambda: client.responses.retrieve(made.id).status == "failed")
    assert client.responses.retrieve(made.id).error.code == "engine_died"


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "tools[0].type"),
        ({"conversation": "conv_1"}, openai.BadRequestError, "conversation"),
        ({"input": "a" * 5000}, openai.BadRequestError, "input"),
        ({"tools": [TOOL, TOOL]}, openai.BadRequestError, "tools[1].name"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            openai.UnprocessableEntityError,
            "input[0].content[0].type",
        ),
    ],
)
def test_errors_have_the_clients_classes(client, fields, error, param):
    with pytest.raises(error) as raised:
        ask(client, **fields)
    assert raised.value.param == param


def test_api_key_is_required(connect, open_server):
    url = open_server(api_key="secret").url
    with pytest.raises(openai.AuthenticationError):
        ask(connect(url))
    with pytest.raises(openai.AuthenticationError):
        connect(url).responses.retrieve("resp_x")
    assert ask(connect(url, "secret")).output_text == "Hello."


class Capital(pydantic.BaseModel):
    city: Literal["Paris", "Rome"]
    is_large: bool


@pytest.mark.slow
def test_the_shipped_model_answers_remembers_calls_and_keeps_to_a_schema(connect, kindling_server):
    client = connect(kindling_server.url, "right")
    greedy = {"model": "kindling", "temperature": 0, "max_output_tokens": 300}
    first = client.responses.create(input=FRANCE, **greedy)
    assert first.output_text == "Paris" and first.output[0].type == "reasoning"
    second = client.responses.create(input="What is 347 + 285?", previous_response_id=first.id, **greedy)
    assert second.output_text == "632" and second.usage.input_tokens > first.usage.input_tokens
    parsed = client.responses.parse(input=FRANCE, text_format=Capital, **greedy)
    assert parsed.output_parsed.city == "Paris"
    called = client.responses.create(input="What is 2 + 2?", tools=[TOOL], tool_choice="required", **greedy)
    [call] = [item for item in called.output if item.type == "function_call"]
    assert call.name == "look" and isinstance(json.loads(call.arguments), dict)


def test_background_response_is_refused_at_the_limit(connect, open_server, eventually):
    """It was accepted and failed later."""
    server = open_server(max_num_seqs=1, max_waiting=1)
    server.engine.pause_s = 0.05
    client = connect(server.url)
    made = [ask(client, background=True) for _ in range(2)]
    eventually(lambda: server.service.admission.num_under_way == 2)
    with pytest.raises(openai.RateLimitError, match="2 is the limit"):
        ask(client, background=True)
    server.engine.pause_s = 0.0
    eventually(lambda: all(client.responses.retrieve(response.id).status == "completed" for response in made))
