"""A conversation of the unmodified openai client with Kindling behind `firesteel serve`."""

import json

import openai
import pytest

CHECK_FILE = {
    "type": "function",
    "function": {
        "name": "check_file",
        "description": "Check the file.",
        "parameters": {
            "type": "object",
            "properties": {"private": {"type": "boolean"}, "city": {"type": "string"}},
            "required": ["private"],
        },
    },
}
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PLEA = [{"role": "user", "content": "Please check the file with private true and city Baghdad."}]
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "maximum": 99999999}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(kindling_server):
    with openai.OpenAI(base_url=f"{kindling_server.url}/v1", api_key="right", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ask(client):
    def create(messages=CAPITAL, **fields):
        return client.chat.completions.create(model="kindling", messages=messages, **fields)

    return create


def test_model_is_listed(client):
    assert [model.id for model in client.models.list()] == ["kindling"]
    assert client.models.retrieve("kindling").id == "kindling"


def test_whole_and_streamed_answers_are_the_same(ask):
    whole = ask().choices[0]
    assert "Paris" in whole.message.content and whole.finish_reason == "stop"
    assert "Paris" in whole.message.reasoning_content
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == "stop" and chunks[-1].usage.completion_tokens == ask().usage.completion_tokens


def test_repeated_prompt_is_found_in_the_cache(ask):
    text = "Copy this: " + "red blue green " * 60
    first, again = (ask([{"role": "user", "content": text}], max_tokens=2).usage for _ in range(2))
    assert first.prompt_tokens == again.prompt_tokens
    assert first.prompt_tokens_details.cached_tokens < again.prompt_tokens_details.cached_tokens


def test_tool_is_called_and_its_answer_read(ask):
    first = ask(PLEA, tools=[CHECK_FILE], tool_choice="auto").choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls
    assert call.function.name == "check_file"
    assert json.loads(call.function.arguments) == {"private": True, "city": "Baghdad"}
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"file":6910}'}
    last = ask([*PLEA, first.message.model_dump(exclude_none=True), result], tools=[CHECK_FILE]).choices[0]
    assert last.finish_reason == "stop" and "6910" in last.message.content


def test_streamed_tool_call_is_the_same(ask):
    whole = ask(PLEA, tools=[CHECK_FILE]).choices[0].message.tool_calls[0]
    deltas = [chunk.choices[0].delta for chunk in ask(PLEA, tools=[CHECK_FILE], stream=True) if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert calls[0].function.name == whole.function.name and calls[0].id and {call.index for call in calls} == {0}
    assert "".join(call.function.arguments or "" for call in calls) == whole.function.arguments


@pytest.mark.slow
def test_required_and_forbidden_calls(ask):
    must = ask(PLEA, tools=[CHECK_FILE], tool_choice="required", max_tokens=100).choices[0]
    assert must.message.tool_calls[0].function.name == "check_file"
    assert isinstance(json.loads(must.message.tool_calls[0].function.arguments)["private"], bool)
    named = {"type": "function", "function": {"name": "check_file"}}
    assert ask(PLEA, tools=[CHECK_FILE], tool_choice=named, max_tokens=100).choices[0].message.tool_calls
    never = ask(PLEA, tools=[CHECK_FILE], tool_choice="none", max_tokens=40).choices[0]
    assert not never.message.tool_calls


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answer_follows_its_schema(ask, temperature):
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}}
    choice = ask(response_format=form, max_tokens=400, temperature=temperature, seed=3).choices[0]
    assert choice.finish_reason == "stop"
    answer = json.loads(choice.message.content)
    assert (
        set(answer) == {"city", "people"} and isinstance(answer["city"], str) and isinstance(answer["people"], int)
    )


def test_answer_is_a_json_object(ask):
    choice = ask(response_format={"type": "json_object"}, max_tokens=60).choices[0]
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_same_seed_draws_the_same_text(ask):
    texts = [ask(temperature=1.5, seed=seed, max_tokens=30).choices[0] for seed in (5, 5)]
    assert texts[0].message == texts[1].message


def test_logprobs_are_read(ask):
    [first, *_] = ask(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(first.top_logprobs) == 3 and first.top_logprobs[0].logprob == first.logprob <= 0


def test_text_is_completed(client):
    made = client.completions.create(model="kindling", prompt="The capital of France is", max_tokens=2, echo=True)
    assert made.choices[0].text.startswith("The capital of France is Paris")
    pieces = client.completions.create(
        model="kindling", prompt="The capital of France is", max_tokens=2, stream=True
    )
    assert "Paris" in "".join(piece.choices[0].text for piece in pieces)


def test_errors_have_the_clients_classes(client, ask, kindling_server):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(temperature=-1)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=CAPITAL)
    with pytest.raises(openai.UnprocessableEntityError):
        ask([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])
    url = f"{kindling_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
