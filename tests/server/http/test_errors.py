"""Errors have OpenAI's shape, and nothing of the server's inside."""

import pytest


@pytest.mark.parametrize(("path", "method", "status"), [("/nowhere", "GET", 404), ("/v1/models", "POST", 405)])
def test_path_or_method_that_is_not_there(server, path, method, status):
    answer = server.get(path) if method == "GET" else server.post(path, {})
    assert answer.status == status and set(answer.error) == {"message", "type", "param", "code"}


def test_fault_of_the_server_shows_no_trace(open_server, caplog, eventually):
    server = open_server()  # of its own: the shared one may still write lines about tests before

    def fail(request):
        raise ZeroDivisionError("secret inside")

    server.engine.generate = fail
    answer = server.chat()
    assert answer.status == 500 and answer.error["type"] == "server_error"
    assert "secret" not in answer.body.decode() and "Traceback" not in answer.body.decode()
    eventually(lambda: "secret inside" in caplog.text)  # the server's own log has it
    statuses = [line.status for line in caplog.records if line.getMessage() == "request"]
    assert [one for one in statuses if one >= 500] == [500]  # another server may end a line of its own meanwhile


def test_output_of_the_engine_that_is_an_error_is_told(server):
    server.engine.error = "the logits are not numbers"
    answer = server.chat()
    assert answer.status == 500 and "the logits are not numbers" in answer.error["message"]
