"""Every error under /v1/messages has Anthropic's shape; other paths keep OpenAI's."""

import http.client
import threading

import msgspec
import pytest

from firesteel.server.anthropic.answers import AnthropicError
from firesteel.server.anthropic.errors import translate
from firesteel.server.anthropic.schema import AnthropicTool, PromptRequest
from firesteel.server.http.errors import ApiError
from tests.server.conftest import FACTS

PATH = "/v1/messages"
HI = {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}


def read(answer, status, kind):
    """Returns the message of an error after checking its shape."""
    error = msgspec.json.decode(answer.body, type=AnthropicError)
    assert (answer.status, error.error.type) == (status, kind), answer.body
    assert error.request_id == answer.headers["request-id"] == answer.headers["x-request-id"]
    return error.error.message


@pytest.mark.parametrize(
    ("fields", "status", "kind", "why"),
    [
        ({"model": "claude-x"}, 404, "not_found_error", "model 'claude-x' not found; available: tiny"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens: "),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: "),
        ({"messages": []}, 400, "invalid_request_error", "messages: "),
        ({"temperature": -1}, 400, "invalid_request_error", "temperature: "),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice needs tools"),
        (
            {"messages": [{"role": "user", "content": "x" * 5000}]},
            400,
            "invalid_request_error",
            "prompt is too long: ",
        ),
    ],
)
def test_refused_requests(server, fields, status, kind, why):
    assert why in read(server.post(PATH, {**HI, **fields}), status, kind)


@pytest.mark.parametrize("kind", ["image", "document"])
@pytest.mark.parametrize("is_result", [False, True])
def test_content_other_than_text_is_refused(server, kind, is_result):
    part = {"type": kind, "source": {"type": "base64", "media_type": "x", "data": "AA=="}}
    turns = [{"role": "user", "content": [part]}]
    if is_result:
        call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "c", "content": [part]}
        turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    for path in (PATH, f"{PATH}/count_tokens"):
        answer = server.post(path, {**HI, "messages": turns})
        assert "this model reads text only" in read(answer, 400, "invalid_request_error")


def test_prompt_that_is_too_long_has_the_sentence_that_clients_match(server):
    answer = server.post(PATH, {**HI, "messages": [{"role": "user", "content": "x" * FACTS.max_context}]})
    words = read(answer, 400, "invalid_request_error").split()
    assert words[:4] == ["prompt", "is", "too", "long:"] and int(words[4]) > FACTS.max_context
    assert words[5:] == ["tokens", ">", str(FACTS.max_context), "maximum"]


def test_thread_is_refused_so_that_clients_send_all_messages(server):
    answer = server.post(PATH, {**HI, "thread": {"type": "create"}})
    read(answer, 400, "invalid_request_error")
    assert answer.error["details"]["error_code"] == "thread_unsupported_request"


def test_errors_of_the_http_layer(server):
    assert read(server.post(PATH, b"{"), 400, "invalid_request_error")
    read(server.post(PATH, b"{}", **{"content-type": "text/plain"}), 415, "invalid_request_error")
    read(server.get(PATH), 405, "invalid_request_error")
    read(server.post(f"{PATH}/batches", HI), 404, "not_found_error")
    read(server.post(PATH, HI, host="evil.example"), 403, "permission_error")


def test_large_body_is_refused(open_server):
    server = open_server(max_body_mib=0.01)
    read(server.post(PATH, {**HI, "system": "x" * 20_000}), 413, "request_too_large")


def test_key_may_come_in_either_header(open_server):
    server = open_server(api_key="right")
    for headers in ({"x-api-key": "right"}, {"authorization": "Bearer right"}):
        assert server.post(PATH, HI, **headers).status == 200
        assert server.get("/v1/models", **headers).status == 200
    for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": ""}):
        assert "x-api-key" in read(server.post(PATH, HI, **headers), 401, "authentication_error")


def test_overload_and_a_dead_engine_are_told(open_server, eventually):
    server = open_server(max_num_seqs=1, max_waiting=0)
    server.engine.pause_s = 0.02
    first = threading.Thread(target=server.post, args=(PATH, HI))
    first.start()
    eventually(lambda: server.engine.num_open == 1)
    answer = server.post(PATH, HI)
    read(answer, 429, "rate_limit_error")
    assert answer.headers["retry-after"]
    first.join()
    server.engine.is_ready = False
    read(server.post(PATH, HI), 503, "overloaded_error")
    server.engine.is_ready, server.engine.dies_after = True, 0
    read(server.post(PATH, {**HI, "stream": True}), 503, "overloaded_error")


def test_failure_is_an_api_error_that_reveals_nothing(open_server):
    server = open_server()

    def fail(requests):
        raise RuntimeError("secret")

    server.engine.open = fail
    assert "secret" not in read(server.post(PATH, HI), 500, "api_error")


def test_error_within_a_stream_is_an_event(server):
    server.engine.dies_after = 20
    body = server.post(PATH, {**HI, "stream": True}).body.decode()
    *events, last = body.strip().split("\n\n")
    assert events[0].startswith("event: message_start\n") and "message_stop" not in body
    name, data = last.split("\n")
    error = msgspec.json.decode(data.removeprefix("data: "), type=AnthropicError)
    assert name == "event: error" and error.error.type == "overloaded_error" and "secret" not in data


def test_other_paths_keep_their_shape(server):
    answer = server.post("/v1/chat/completions", {"messages": []})
    assert set(answer.json()) == {"error"} and "request-id" not in answer.headers


def test_stopping_server_tells_streams_that_have_begun(open_server, eventually):
    server = open_server(drain_s=0.1)
    server.engine.pause_s = 0.05
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    body = msgspec.json.encode({**HI, "stream": True})
    connection.request("POST", PATH, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    eventually(lambda: server.engine.num_open == 1)
    server.server.should_exit = True
    assert b'event: error\ndata: {"type":"error"' in answer.read()
    connection.close()


def test_fields_of_a_chat_have_their_names_in_this_api():
    asked = PromptRequest(
        messages=[],
        tools=[AnthropicTool(type="bash_20250124", name="bash"), AnthropicTool(name="a", input_schema={})],
    )
    place = "tools[0].function.parameters"
    error = translate(ApiError(400, f"{place}: bad", param=place, retry_s=3), asked)
    assert (str(error), error.param, error.retry_s) == ("tools[1].input_schema: bad", "tools[1].input_schema", 3)
    error = translate(ApiError(400, "bad", param="response_format.json_schema.schema"), asked)
    assert error.param == "output_config.format.schema"
