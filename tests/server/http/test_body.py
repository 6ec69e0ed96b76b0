"""Bodies that are too large, too slow, not JSON, or have unknown fields."""

import logging
import socket
import time

import pytest

from firesteel.server.http import body

PATH = "/v1/chat/completions"
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    "sent",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": "\\ud800"}', b"[" * 100_000, b'{"a": ' * 100_000],
)
def test_body_that_is_not_a_json_object_is_refused(server, sent):
    answer = server.post(PATH, sent)
    assert answer.status == 400 and answer.error["message"]


@pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded"])
def test_content_type_must_be_json(server, kind):
    answer = server.post(PATH, HELLO, **{"content-type": kind})
    assert answer.status == 415 and "application/json" in answer.error["message"]
    assert server.post(PATH, HELLO, **{"content-type": "Application/JSON; charset=utf-8"}).status == 200


def test_large_body_is_refused_before_it_is_read(open_server):
    server = open_server(max_body_mib=0.01)
    answer = server.chat("x" * 20_000)
    assert answer.status == 413 and "max_body_mib" in answer.error["message"]
    assert server.chat("x" * 100).status == 200


def talk(server, *parts, pause_s=0.0):
    """Sends parts of a raw request and reads until the server closes or is silent."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as end:
        for part in parts:
            end.sendall(part)
            time.sleep(pause_s)
        answer = b""
        while b"}" not in answer and (data := end.recv(65536)):
            answer += data
        return answer


def test_body_without_a_length_is_counted_as_it_arrives(open_server):
    server = open_server(max_body_mib=0.01)
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    part = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    assert b" 413 " in talk(server, head, part, part, part, part)


def test_body_that_does_not_arrive_times_out(open_server, monkeypatch):
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.2)
    server = open_server()
    head = HEAD + b"content-length: 9\r\n\r\n"
    start = time.monotonic()
    assert b" 408 " in talk(server, head, b"{")
    assert time.monotonic() - start < 5


def test_unknown_field_is_ignored_with_a_warning(server, caplog):
    with caplog.at_level(logging.WARNING, "firesteel.server"):
        assert server.chat(flavour="sweet", temperature=0).status == 200
    [line] = [record for record in caplog.records if record.getMessage() == "unknown fields ignored"]
    assert line.fields == ["flavour"]
