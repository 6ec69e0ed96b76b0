"""The client against servers that answer, refuse, break off and talk nonsense."""

import asyncio
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from firesteel.lab.client import Client
from firesteel.lab.mock import mock_server
from firesteel.lab.prompts import user
from firesteel.lab.wire import RequestFailed


@contextmanager
def answering(body, status=200):
    """A server that answers everything with the same bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"] or 0))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def stream(url, **fields):
    async def ask():
        async with Client(url, model="any") as client:
            return await client.stream([user("hi there")], max_tokens=8, **fields)

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def mock():
    with mock_server(pp_tok_s=10000.0, tg_tok_s=200.0) as url:
        yield url


def test_a_whole_answer_is_timed(mock):
    found = stream(mock)
    assert found.is_whole and found.status == 200 and found.finish_reason == "length"
    assert found.output_tokens == 8 and found.prompt_tokens == 10
    assert found.start_s < found.first_response_s <= found.first_token_s < found.token_times_s[-1] <= found.end_s


def test_a_client_that_leaves_has_what_it_waited_for(mock):
    found = stream(mock, leave_after=3)
    assert found.is_whole and 3 <= found.output_tokens < 8


def test_the_served_model_is_found(mock):
    async def ask():
        async with Client(mock) as client:
            return client.model, await client.chat([user("hi")], max_tokens=2)

    model, answer = asyncio.run(ask())
    assert model == "mock" and answer["usage"]["completion_tokens"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"error": "full"}', 503, "answered 503"),
        (b"data: {nonsense\n\n", 200, "not JSON"),
        (b"data: [1, 2]\n\n", 200, "not an object"),
        (b'data: {"choices": [7]}\n\n', 200, "no chunk"),
        (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', 200, "no \\[DONE\\]"),
        (b'data: {"error": {"message": "dead"}}\n\ndata: [DONE]\n\n', 200, "dead"),
    ],
)
def test_what_a_server_does_wrong_is_said(body, status, words):
    with answering(body, status) as url:
        found = stream(url)
    assert re.search(words, found.error) and found.status == status


def test_nobody_there_is_said():
    found = stream("http://127.0.0.1:9")
    assert "Connect" in found.error and found.status is None


def test_a_server_that_lists_no_models_is_an_error():
    async def ask(url):
        async with Client(url):
            pass

    with answering(b'{"data": []}') as url, pytest.raises(RequestFailed, match="lists no model"):
        asyncio.run(ask(url))
    with answering(b"hello") as url, pytest.raises(RequestFailed, match="not JSON"):
        asyncio.run(ask(url))
