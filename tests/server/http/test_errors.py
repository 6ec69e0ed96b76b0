"""Errors have OpenAI's format and do not show the inside of the server."""

import json
import urllib.request

import pytest

from firesteel.server.generate.choice import Choice


@pytest.mark.parametrize(("path", "method", "status"), [("/nowhere", "GET", 404), ("/v1/models", "POST", 405)])
def test_unknown_path_or_method_is_an_error(server, path, method, status):
    answer = server.get(path) if method == "GET" else server.post(path, {})
    assert answer.status == status and set(answer.error) == {"message", "type", "param", "code"}
    assert path in answer.error["message"] and method in answer.error["message"]
    assert answer.headers["x-request-id"]


def test_405_names_all_methods_of_the_path(server):
    """It named GET alone where DELETE was possible too."""
    for path, methods in (
        ("/v1/responses/resp_1", {"GET", "HEAD", "DELETE"}),
        ("/v1/responses", {"POST"}),
        ("/v1/models", {"GET", "HEAD"}),
    ):
        request = urllib.request.Request(server.url + path, method="PUT", data=b"{}")
        answer = server._ask(request)
        assert answer.status == 405 and set(answer.headers["allow"].split(", ")) == methods
    assert server.delete("/v1/responses/resp_1").status == server.get("/v1/responses/resp_1").status == 404


def test_server_fault_does_not_show_its_traceback(open_server, caplog, eventually):
    server = open_server()  # of its own: the shared one may still write lines about tests before

    def fail(request):
        raise ZeroDivisionError("secret inside")

    server.engine.generate = fail
    answer = server.chat()
    assert answer.status == 500 and answer.error["type"] == "server_error"
    assert "secret" not in answer.body.decode() and "Traceback" not in answer.body.decode()
    eventually(lambda: "secret inside" in caplog.text)  # the server's own log has it
    statuses = [line.status for line in caplog.records if line.getMessage() == "request"]
    # Another server may end a line of its own meanwhile.
    assert [status for status in statuses if status >= 500] == [500]


def test_panic_of_a_library_has_an_answer_in_json(open_server, caplog, eventually, monkeypatch):
    """A panic is a BaseException, which the web framework answered with a bare text."""
    server = open_server()

    def panic(tokens):
        raise type("PanicException", (BaseException,), {})("secret inside")

    monkeypatch.setattr(server.service.tokenizer, "decode", panic)
    answer = server.post("/detokenize", {"tokens": [1]})
    assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert "secret" not in answer.body.decode()
    eventually(lambda: "secret inside" in caplog.text)
    monkeypatch.undo()
    assert server.post("/detokenize", {"tokens": [97]}).status == 200


def fail_after(num_tokens, error):
    """Returns a reader of outputs that raises `error` once it has read `num_tokens`."""
    read = Choice.read

    def fail(self, outputs):
        if self.num_output >= num_tokens:
            raise error
        return read(self, outputs)

    return fail


@pytest.mark.parametrize("kind", [BaseException, Exception], ids=["panic", "fault"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 40}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_fault_within_a_stream_is_its_last_event(open_server, caplog, eventually, monkeypatch, kind, path, body):
    """The stream was cut, and a client could not tell it from a broken connection."""
    server = open_server()
    server.engine.pause_s = 0.01
    monkeypatch.setattr(Choice, "read", fail_after(16, type("PanicException", (kind,), {})("secret inside")))
    answer = server.post(path, {**body, "stream": True})
    events = [event for event in answer.body.decode().split("\n\n") if event]
    assert answer.status == 200 and len(events) > 1 and "secret" not in answer.body.decode()
    last = json.loads(events[-1].rpartition("data: ")[2])
    if path == "/v1/responses":
        assert last["type"] == "response.failed" and last["response"]["error"]["code"] == "server_error"
    else:
        assert last["error"]["type"] == "server_error"
    eventually(lambda: "secret inside" in caplog.text)
    eventually(lambda: server.engine.num_open == 0 and server.service.admission.num_under_way == 0)
    eventually(lambda: 500 in [line.status for line in caplog.records if line.getMessage() == "request"])


@pytest.mark.parametrize("kind", [BaseException, Exception], ids=["panic", "fault"])
def test_fault_in_the_background_is_stored(open_server, caplog, eventually, monkeypatch, kind):
    """Such a response stayed in progress for ever."""
    server = open_server()
    monkeypatch.setattr(Choice, "read", fail_after(0, type("PanicException", (kind,), {})("secret inside")))
    made = server.post("/v1/responses", {"input": "hi", "background": True}).json()
    eventually(lambda: server.get(f"/v1/responses/{made['id']}").json()["status"] == "failed")
    assert "secret inside" in caplog.text
    assert "secret" not in server.get(f"/v1/responses/{made['id']}").body.decode()


def test_error_output_of_the_engine_is_reported(server):
    server.engine.error = "the logits are not numbers"
    answer = server.chat()
    assert answer.status == 500 and "the logits are not numbers" in answer.error["message"]
