"""Errors have OpenAI's format and do not show the inside of the server."""

import urllib.request

import pytest


@pytest.mark.parametrize(("path", "method", "status"), [("/nowhere", "GET", 404), ("/v1/models", "POST", 405)])
def test_unknown_path_or_method_is_an_error(server, path, method, status):
    answer = server.get(path) if method == "GET" else server.post(path, {})
    assert answer.status == status and set(answer.error) == {"message", "type", "param", "code"}


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


def test_error_output_of_the_engine_is_reported(server):
    server.engine.error = "the logits are not numbers"
    answer = server.chat()
    assert answer.status == 500 and "the logits are not numbers" in answer.error["message"]
