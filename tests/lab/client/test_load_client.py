"""The load client with servers that answer, refuse, break off or send garbage."""

import asyncio
import re
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler

import pytest

from firesteel.lab.client import load_client
from firesteel.lab.client.load_client import LoadClient
from firesteel.lab.client.prompts import user
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.servers.supervisor import SupervisedServer
from tests.lab.mock import mock_server


@pytest.fixture
def answering(serving):
    """answering(body): a server that answers every request so, and then keeps the connection open for a while."""

    def answer(body, status=200, pings=0):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"] or 0))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)
                for _ in range(pings):
                    time.sleep(0.02)
                    with suppress(OSError):  # the client has disconnected
                        self.wfile.write(b":\n\n")

            do_GET = do_POST

            def log_message(self, *words):
                pass

        return serving(Handler)

    return answer


def stream(url, timeout_s=600.0, **fields):
    async def ask():
        async with LoadClient(url, model="any", timeout_s=timeout_s) as client:
            return await client.stream([user("hi there")], max_tokens=8, **fields)

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def mock():
    with mock_server(pp_tok_s=10000.0, tg_tok_s=200.0) as url:
        yield url


def test_complete_answer_is_timed(mock):
    exchange = stream(mock)
    assert exchange.is_whole and exchange.status == 200 and exchange.finish_reason == "length"
    assert exchange.output_tokens == 8 and exchange.prompt_tokens == 10
    assert (
        exchange.start_s
        < exchange.first_response_s
        <= exchange.first_token_s
        < exchange.token_times_s[-1]
        <= exchange.end_s
    )


def open_stream(url):
    async def ask():
        async with LoadClient(url, model="any") as client:
            first = await client.open_stream()
            return client.asks_ids, first, await client.stream([user("hi")], max_tokens=8)

    return asyncio.run(ask())


class ClosingServer:
    """Closes each connection after `answers` answers without saying so, as llama-server does after some streams."""

    EVENTS = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'

    def __init__(self, answers, last=b""):
        self.answers, self.last, self.num_connections, self.num_requests = answers, last, 0, 0

    async def serve(self, reader, writer):
        self.num_connections += 1
        with closing(writer), suppress(asyncio.IncompleteReadError):
            for _ in range(self.answers):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
                self.num_requests += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(self.EVENTS) + self.EVENTS)
            await reader.read(1)  # the next request has begun: it gets no answer
            writer.write(self.last)


def ask_closing(server, num_requests):
    async def ask():
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            async with LoadClient(f"http://127.0.0.1:{port}", model="any") as client:
                return [await client.stream([user("hi")], max_tokens=1) for _ in range(num_requests)]

    return asyncio.run(ask())


@pytest.mark.parametrize(("answers", "are_whole"), [(1, [True, True, True]), (0, [False])])
def test_request_on_a_connection_that_the_server_closes_is_sent_again_but_not_on_a_new_one(answers, are_whole):
    server = ClosingServer(answers)
    exchanges = ask_closing(server, len(are_whole))
    assert [exchange.is_whole for exchange in exchanges] == are_whole
    assert all(exchange.first_token_s > exchange.start_s for exchange in exchanges if exchange.is_whole)
    assert (server.num_connections, server.num_requests) == (len(are_whole), sum(are_whole))


@pytest.mark.parametrize(("within_s", "last"), [(0.0, b""), (60.0, b"no HTTP\r\n\r\n")], ids=["late", "broken"])
def test_request_is_not_sent_again_if_the_server_may_have_computed_or_answered(monkeypatch, within_s, last):
    """A server that died while it computed, or answered what is no HTTP, was asked once more and passed."""
    monkeypatch.setattr(load_client, "RESEND_WITHIN_S", within_s)
    server = ClosingServer(1, last)
    assert [exchange.is_whole for exchange in ask_closing(server, 2)] == [True, False]
    assert server.num_connections == 1


def test_token_ids_are_requested_if_the_server_accepts_that(mock):
    asks_ids, first, exchange = open_stream(mock)
    assert asks_ids and first.is_whole and exchange.counted_by == "token_ids"


def test_server_that_refuses_token_ids_is_counted_by_usage(fake, tmp_path):
    with SupervisedServer(fake("speaks-sglang"), tmp_path) as server:
        asks_ids, first, exchange = open_stream(server.command.url)
    assert not asks_ids and first.is_whole and (exchange.counted_by, exchange.output_tokens) == ("usage", 8)


@pytest.mark.parametrize("status", [400, 503])
def test_refusal_for_another_reason_is_kept(status, answering):
    with answering(b"no", status) as url:
        asks_ids, first, exchange = open_stream(url)
    assert asks_ids and first.error == exchange.error == f"/v1/chat/completions was answered {status}: no"


def test_client_that_disconnects_has_the_tokens_so_far(mock):
    exchange = stream(mock, leave_after=3)
    assert exchange.is_whole and 3 <= exchange.output_tokens < 8


def test_served_model_is_found(mock):
    async def ask():
        async with LoadClient(mock) as client:
            return client.model, await client.chat([user("hi")], max_tokens=2)

    model, answer = asyncio.run(ask())
    assert model == "mock" and answer["usage"]["completion_tokens"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "words", "kind"),
    [
        (b'{"error": "full"}', 503, "answered 503", "http-error"),
        (b"data: {nonsense\n\n", 200, "not JSON", "garbage"),
        (b"data: [1, 2]\n\n", 200, "not an object", "garbage"),
        (b'data: {"choices": [7]}\n\n', 200, "invalid chunk", "garbage"),
        (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', 200, "no \\[DONE\\]", "garbage"),
        (b'data: {"error": {"message": "dead"}}\n\ndata: [DONE]\n\n', 200, "dead", "http-error"),
    ],
)
def test_wrong_answer_is_described(body, status, words, kind, answering):
    with answering(body, status) as url:
        exchange = stream(url)
    assert re.search(words, exchange.error) and (exchange.status, exchange.error_kind) == (status, kind)


def test_keep_alive_comments_count_as_silence(answering):
    """llama.cpp sends one every 30 s, also while it hangs, so that a stream would never end."""
    with answering(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', pings=20) as url:
        exchange = stream(url, timeout_s=0.1)
    assert exchange.error_kind == "silent" and "no answer in 0 s" in exchange.error


def test_missing_server_is_unreachable():
    exchange = stream("http://127.0.0.1:9")
    assert "Connect" in exchange.error and exchange.status is None and exchange.error_kind == "unreachable"


def test_server_without_models_is_an_error(answering):
    async def ask(url):
        async with LoadClient(url):
            pass

    with answering(b'{"data": []}') as url, pytest.raises(RequestFailed, match="lists no model"):
        asyncio.run(ask(url))
    with answering(b"hello") as url, pytest.raises(RequestFailed, match="not JSON"):
        asyncio.run(ask(url))


def test_latency_is_the_least_of_many(monkeypatch):
    """The mean of three pings, which a busy server delays, was subtracted from the times of prompts."""
    delays_s = iter([0.02] * 7 + [0.0] + [0.02] * 12)

    async def get(self, path):
        await asyncio.sleep(next(delays_s))

    monkeypatch.setattr(LoadClient, "get", get)
    assert asyncio.run(LoadClient("http://127.0.0.1:1").latency_s()) < 0.015
    assert not list(delays_s)
