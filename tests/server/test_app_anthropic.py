"""A conversation of the unmodified anthropic client with Kindling behind `firesteel serve`."""

import anthropic
import pydantic
import pytest

from tests.server.recipes import read_recipe

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PLEA = [{"role": "user", "content": "Please check the file with private true and city Baghdad."}]
CHECK_FILE = {
    "name": "check_file",
    "description": "Check the file.",
    "input_schema": {
        "type": "object",
        "properties": {"private": {"type": "boolean"}, "city": {"type": "string"}},
        "required": ["private"],
    },
}
THINKING = {"type": "enabled", "budget_tokens": 8192}


@pytest.fixture(scope="module")
def client(kindling_server):
    with anthropic.Anthropic(base_url=kindling_server.url, api_key="right", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ask(client):
    def create(messages=CAPITAL, **fields):
        return client.messages.create(model="kindling", max_tokens=300, messages=messages, **fields)

    return create


def test_recipe_prints_the_answer(kindling_server, capsys):
    recipe = read_recipe("anthropic (Python)", url=kindling_server.url, model="kindling")
    assert '"anything"' in recipe
    names = {}
    exec(recipe.replace('"anything"', '"right"'), names)
    names["client"].close()
    assert "Paris" in capsys.readouterr().out


def test_whole_and_streamed_messages_are_the_same(client, ask):
    whole = ask(thinking=THINKING)
    thought, text = whole.content
    assert "Paris" in thought.thinking and "Paris" in text.text and whole.stop_reason == "end_turn"
    with client.messages.stream(model="kindling", max_tokens=300, messages=CAPITAL, thinking=THINKING) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert {"message_start", "thinking", "signature", "text", "content_block_stop", "message_stop"} <= set(kinds)
    assert (streamed.content[0].thinking, streamed.content[0].signature) == (thought.thinking, thought.signature)
    assert streamed.content[1].text == text.text
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_tool_is_called_in_a_loop(ask):
    messages = list(PLEA)
    first = ask(messages, tools=[CHECK_FILE], thinking=THINKING)
    assert first.stop_reason == "tool_use"
    [call] = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("check_file", {"private": True, "city": "Baghdad"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": '{"file":6910}'}]}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    last = ask(messages, tools=[CHECK_FILE], thinking=THINKING)
    assert last.stop_reason == "end_turn" and "6910" in last.content[-1].text
    assert last.usage.cache_read_input_tokens > 0


def test_tool_runner_continues_without_a_thread(client):
    calls = []

    @anthropic.beta_tool
    def check_file(private: bool, city: str = "") -> str:
        """Check the file.

        Args:
            private: private or not
            city: name of a city
        """
        calls.append((private, city))
        return '{"file":6910}'

    runner = client.beta.messages.tool_runner(model="kindling", max_tokens=300, tools=[check_file], messages=PLEA)
    assert "6910" in runner.until_done().content[-1].text and calls == [(True, "Baghdad")]


@pytest.mark.slow
def test_streamed_call_is_accumulated(client):
    with client.messages.stream(model="kindling", max_tokens=300, messages=PLEA, tools=[CHECK_FILE]) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use" and message.content[-1].input == {"private": True, "city": "Baghdad"}


@pytest.mark.slow
def test_answer_is_parsed(client):
    class Place(pydantic.BaseModel):
        city: str
        private: bool

    parsed = client.messages.parse(model="kindling", max_tokens=400, messages=PLEA, output_format=Place)
    assert isinstance(parsed.parsed_output, Place)


def test_tokens_are_counted_and_models_listed(client, ask):
    counted = client.messages.count_tokens(model="kindling", messages=CAPITAL).input_tokens
    usage = ask().usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    [model] = client.models.list()
    assert (model.id, model.display_name, model.type) == ("kindling", "kindling", "model")
    assert client.models.retrieve("kindling").created_at.year > 2000


def test_errors_have_the_clients_classes(client, ask, kindling_server):
    with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
        ask(extra_body={"temperature": -1})
    assert caught.value.request_id and caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude", max_tokens=5, messages=CAPITAL)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
        ask([{"role": "user", "content": "a b c " * 10_000}])
    with (
        anthropic.Anthropic(base_url=kindling_server.url, api_key="wrong") as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model="kindling", max_tokens=5, messages=CAPITAL)
