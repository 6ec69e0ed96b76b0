"""The access log: ids and counts, and the prompt only if configured."""

import json
import logging

import pytest

from firesteel.server.observe.access_log import LineFormatter


@pytest.fixture
def server(open_server):
    """A separate server: the shared one may still log lines of earlier tests."""
    return open_server()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "firesteel.server")

    def find():
        return [record for record in caplog.records if record.getMessage() == "request"]

    return find


def test_answer_and_line_carry_the_same_id(server, lines, eventually):
    given = server.get("/v1/models", **{"x-request-id": "my-id.1"})
    assert given.headers["x-request-id"] == "my-id.1"
    made = server.get("/v1/models").headers["x-request-id"]
    odd = server.get("/v1/models", **{"x-request-id": "a b"}).headers["x-request-id"]
    assert len(made) == len(odd) == 32 and made != odd
    eventually(lambda: len(lines()) == 3)


def test_line_has_counts_and_no_prompt(server, lines, eventually):
    server.chat("my secret")
    eventually(lines)
    [line] = lines()
    assert (line.status, line.path, line.output_tokens, line.finish) == (200, "/v1/chat/completions", 38, "stop")
    assert line.prompt_tokens == server.engine.requests[0].num_prompt and line.first_token_ms == 100.0
    for as_json in (False, True):
        assert "secret" not in LineFormatter(as_json=as_json).format(line)


def test_prompt_is_logged_if_configured(open_server, lines, eventually):
    open_server(log_prompts=True).chat("my secret")
    eventually(lines)
    assert "my secret" in lines()[0].prompt


def test_error_is_logged_with_its_cause(server, lines, eventually):
    server.chat(temperature=-1)
    eventually(lines)
    assert lines()[0].levelno == logging.WARNING and "temperature" in lines()[0].error


def test_healthy_probes_are_not_logged(server, lines, eventually):
    server.get("/health")
    server.get("/metrics")
    server.engine.is_ready = False
    server.get("/health")
    eventually(lines)
    assert [line.status for line in lines()] == [503]


def test_lines_are_pairs_or_json():
    record = logging.makeLogRecord({"msg": "request", "levelname": "INFO", "status": 200, "error": 'a "b"\nc'})
    assert LineFormatter(as_json=False).format(record).endswith(r'info    request status=200 error="a \"b\"\nc"')
    whole = json.loads(LineFormatter(as_json=True).format(record))
    assert (whole["event"], whole["level"], whole["status"], whole["error"]) == ("request", "info", 200, 'a "b"\nc')


@pytest.mark.parametrize("as_json", [False, True])
def test_line_holds_no_control_or_direction_characters(as_json):
    odd = "/a\x9b2J\u202eb\u2028c\x7f"
    record = logging.makeLogRecord({"msg": f"path {odd}\nforged", "levelname": "INFO", "path": odd})
    line = LineFormatter(as_json=as_json).format(record)
    assert line.isprintable() and "\\u202e" in line
    if as_json:
        assert json.loads(line)["path"] == odd
