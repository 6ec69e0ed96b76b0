"""Clients that leave, do not read or wait too long: their requests end, and no others."""

import json
import socket
import threading

import pytest

from firesteel.errors import HostMemoryLow


@pytest.fixture
def server(open_server):
    """A server with its own metrics."""
    return open_server()


def send_chat(server, **fields):
    """Opens a connection and sends a chat request; the test decides what the client does next."""
    host, port = server.url.removeprefix("http://").split(":")
    end = socket.create_connection((host, int(port)), timeout=10)
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    head = "POST /v1/chat/completions HTTP/1.1", "host: localhost", "content-type: application/json"
    end.sendall("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body)
    return end


def count(server, status):
    text = server.get("/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("firesteel_http_requests_total")]
    return sum(float(line.split()[-1]) for line in lines if f'status="{status}"' in line)


def test_request_ends_when_its_client_leaves(server, eventually):
    server.engine.pause_s = 0.05
    for stream in (True, False):
        end = send_chat(server, stream=stream)
        eventually(lambda: server.engine.num_open == 1)
        end.close()
        eventually(lambda: server.engine.num_open == 0)
        assert server.service.admission.num_under_way == 0
    eventually(lambda: count(server, 499) == 2)
    server.engine.pause_s = 0.0
    assert server.chat().status == 200


def test_client_that_leaves_during_a_stream_is_noticed(server, eventually):
    server.engine.pause_s = 0.02
    end = send_chat(server, stream=True)
    assert b"data: " in end.recv(65536) + end.recv(65536)
    end.close()
    eventually(lambda: server.engine.num_open == 0)
    eventually(lambda: count(server, 499) == 1)


def test_leaving_does_not_disturb_others(server):
    server.engine.pause_s = 0.02
    answers = []
    other = threading.Thread(target=lambda: answers.append(server.chat()))
    other.start()
    send_chat(server, stream=True).close()
    other.join()
    assert answers[0].status == 200 and answers[0].json()["choices"][0]["message"]["content"] == "Hello."


def test_client_that_does_not_read_is_dropped(open_server, eventually):
    text = "x" * 5_000
    server = open_server(f"<|channel|>final<|message|>{text * 10}<|return|>", slow_client_s=0.3)
    server.engine.facts = type(server.engine.facts)(
        **{name: getattr(server.engine.facts, name) for name in server.engine.facts.__struct_fields__}
        | {"max_context": 100_000}
    )
    end = send_chat(server, stream=True, logprobs=True, top_logprobs=20)
    eventually(lambda: server.engine.num_open == 1)
    eventually(lambda: server.engine.num_open == 0, 30)
    eventually(lambda: count(server, 499) == 1)
    end.close()


def test_request_times_out(open_server):
    server = open_server(request_timeout_s=0.3)
    server.engine.pause_s = 0.2
    answer = server.chat()
    assert answer.status == 504 and answer.error["code"] == "timeout"
    events = server.chat(stream=True).body.decode()
    assert "request_timeout_s" in events and "[DONE]" not in events
    assert server.engine.num_open == 0


def test_stream_whose_engine_dies_ends_with_an_error(server):
    server.engine.dies_after = 15
    body = server.chat(stream=True).body.decode()
    last = json.loads(body.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "engine_died" and "[DONE]" not in body and "secret" not in body


def test_request_that_the_hosts_memory_has_no_room_for_may_be_sent_again(open_server):
    server = open_server()

    def refuse(request):
        raise HostMemoryLow("the host has 11.0 GiB of memory free")

    server.engine.generate = refuse
    for stream in (False, True):
        answer = server.chat(stream=stream)
        assert answer.status == 503 and answer.error["code"] == "host_memory_low" and answer.headers["retry-after"]


def test_engine_that_dies_before_the_first_token_is_an_http_error(server):
    server.engine.dies_after = 0
    for stream in (False, True):
        answer = server.chat(stream=stream)
        assert answer.status == 503 and answer.error["code"] == "engine_died" and answer.headers["retry-after"]
        assert "secret" not in answer.body.decode()


def test_stream_disables_proxy_buffering(server):
    headers = server.chat(stream=True).headers
    assert headers["content-type"].startswith("text/event-stream") and headers["x-accel-buffering"] == "no"
