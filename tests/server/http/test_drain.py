"""The end of a drain: every request that is still under way is told, in its own form and with its true status."""

import asyncio
import json
import signal
import socket
import threading
import time

import pytest

from firesteel.server.http import drain as drain_module
from firesteel.server.http.drain import Drain, DrainGuard
from firesteel.server.http.sse import HEADERS

LONG = "<|channel|>final<|message|>" + "a" * 2000
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def slow_server(open_server):
    """slow_server(drain_s=1): its answers take minutes."""

    def make(**settings):
        server = open_server(LONG, **settings)
        server.engine.pause_s = 0.05
        return server

    return make


@pytest.fixture
def begin(eventually):
    """begin(server, bodies): sends requests by path; returns a function that waits for their answers."""

    def start(server, bodies):
        answers = {}
        threads = [
            threading.Thread(
                target=lambda name=name, path=path, body=body: answers.update({name: server.post(path, body)})
            )
            for name, (path, body) in bodies.items()
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: server.engine.num_open == len(bodies))
        time.sleep(0.3)  # streams begin

        def join():
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()
            return answers

        return join

    return start


BODIES = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "chat stream": ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    "completion": ("/v1/completions", {"prompt": "hi", "max_tokens": 900}),
    "completion stream": ("/v1/completions", {"prompt": "hi", "stream": True, "max_tokens": 900}),
    "response": ("/v1/responses", {"input": "hi"}),
    "response stream": ("/v1/responses", {"input": "hi", "stream": True}),
}


def find_statuses(caplog):
    return [record.status for record in caplog.records if hasattr(record, "status")]


def last_event(answer):
    *_, last = answer.body.decode().strip().split("\n\n")
    return json.loads(last.rpartition("data: ")[2])


def test_drain_that_is_too_short_ends_every_request_with_an_error(slow_server, begin, caplog, eventually):
    server = slow_server(drain_s=0.2)
    join = begin(server, BODIES)
    with caplog.at_level("INFO", logger="firesteel.server"):
        server.server.handle_exit(signal.SIGTERM, None)
        answers = join()
        eventually(lambda: find_statuses(caplog) == [503] * len(BODIES))  # logged after the answer was sent
    for name in ("chat", "completion", "response"):
        answer = answers[name]
        assert answer.status == 503 and answer.headers["retry-after"] and answer.error["code"] == "stopping", name
    for name in ("chat stream", "completion stream"):
        assert answers[name].status == 200 and b"[DONE]" not in answers[name].body
        assert last_event(answers[name])["error"]["code"] == "stopping", name
    failed = last_event(answers["response stream"])
    assert failed["type"] == "response.failed" and failed["response"]["error"]["code"] == "stopping"


def test_second_signal_ends_the_drain(slow_server, begin):
    server = slow_server(drain_s=60)
    join = begin(server, BODIES)
    server.server.handle_exit(signal.SIGINT, None)
    time.sleep(0.5)
    assert server.engine.num_open == len(BODIES), "the first one waits"
    server.server.handle_exit(signal.SIGINT, None)
    assert {answer.status for answer in join().values()} == {200, 503}
    assert not server.server.force_exit


def test_body_that_still_arrives_is_answered(open_server, caplog):
    server = open_server(drain_s=0.2)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: 99\r\n\r\n{{".encode())
        time.sleep(0.3)
        server.server.handle_exit(signal.SIGTERM, None)
        client.settimeout(20)
        answer = b""
        while part := client.recv(4096):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 503 " in head and b"retry-after" in head and json.loads(body)["error"]["code"] == "stopping"


def test_failed_engine_ends_the_server(open_server, eventually):
    server = open_server()
    assert server.get("/health").status == 200
    server.engine.failure = server.engine.fatal_failure = "the engine is not restarted"
    eventually(lambda: server.server.failure == "the engine is not restarted")
    assert server.service.admission.is_stopping and server.server.should_exit


def run_guarded(app, send, monkeypatch, *, patience_s=0.1):
    """Runs an app until the drain has ended; returns its scope."""
    monkeypatch.setattr(drain_module, "TELL_S", patience_s)

    async def live():
        drain, scope = Drain(), {"type": "http", "state": {}}
        running = asyncio.create_task(DrainGuard(app, drain)(scope, None, send))
        await asyncio.sleep(0.01)
        await drain.end()
        await asyncio.wait_for(running, 5)
        assert not drain._tasks and not drain._cancelled
        return scope

    return asyncio.run(live())


async def stream_for_ever(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await asyncio.sleep(60)


async def answer_half(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
    await asyncio.sleep(60)


def test_stream_that_ignores_its_failure_is_cancelled_and_told(monkeypatch):
    sent = []

    async def send(message):
        sent.append(message)

    scope = run_guarded(stream_for_ever, send, monkeypatch)
    assert b'"code":"stopping"' in sent[-1]["body"] and not sent[-1]["more_body"]
    assert scope["state"]["status"] == 503


def test_client_that_does_not_read_does_not_hold_the_server(monkeypatch):
    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    assert run_guarded(stream_for_ever, send, monkeypatch)["state"]["status"] == 503


def test_nothing_is_added_to_half_an_answer(monkeypatch):
    sent = []

    async def send(message):
        sent.append(message)

    run_guarded(answer_half, send, monkeypatch)
    assert [message["type"] for message in sent] == ["http.response.start"]


def test_cancellation_from_elsewhere_is_passed_on():
    async def live():
        running = asyncio.create_task(
            DrainGuard(stream_for_ever, Drain())({"type": "http"}, None, asyncio.Queue().put)
        )
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(live())
