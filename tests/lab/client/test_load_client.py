"""The client against servers that answer, refuse, break off and talk nonsense."""

import asyncio
import re
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

import pytest

from firesteel.lab.client.load_client import LoadClient
from firesteel.lab.client.prompts import user
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.servers.supervisor import SupervisedServer
from tests.lab.mock import mock_server


@pytest.fixture
def answering(serving):
    """answering(body): a server that answers everything so, and then only keeps the connection open for a while."""

    def answer(body, status=200, pings=0):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"] or 0))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)
                for _ in range(pings):
                    time.sleep(0.02)
                    with suppress(OSError):  # the client has left
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


def test_a_whole_answer_is_timed(mock):
    found = stream(mock)
    assert found.is_whole and found.status == 200 and found.finish_reason == "length"
    assert found.output_tokens == 8 and found.prompt_tokens == 10
    assert found.start_s < found.first_response_s <= found.first_token_s < found.token_times_s[-1] <= found.end_s


def open_stream(url):
    async def ask():
        async with LoadClient(url, model="any") as client:
            first = await client.open_stream()
            return client.asks_ids, first, await client.stream([user("hi")], max_tokens=8)

    return asyncio.run(ask())


def test_ids_of_tokens_are_asked_for_where_a_server_takes_that(mock):
    asks_ids, first, found = open_stream(mock)
    assert asks_ids and first.is_whole and found.counted_by == "token_ids"


def test_server_that_refuses_ids_of_tokens_in_a_stream_is_not_asked_for_them(fake, tmp_path):
    with SupervisedServer(fake("speaks-sglang"), tmp_path) as server:
        asks_ids, first, found = open_stream(server.command.url)
    assert not asks_ids and first.is_whole and (found.counted_by, found.output_tokens) == ("usage", 8)


@pytest.mark.parametrize("status", [400, 503])
def test_refusal_that_is_not_of_the_ids_is_kept(status, answering):
    with answering(b"no", status) as url:
        asks_ids, first, found = open_stream(url)
    assert asks_ids and first.error == found.error == f"/v1/chat/completions was answered {status}: no"


def test_a_client_that_leaves_has_what_it_waited_for(mock):
    found = stream(mock, leave_after=3)
    assert found.is_whole and 3 <= found.output_tokens < 8


def test_the_served_model_is_found(mock):
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
        (b'data: {"choices": [7]}\n\n', 200, "no chunk", "garbage"),
        (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', 200, "no \\[DONE\\]", "garbage"),
        (b'data: {"error": {"message": "dead"}}\n\ndata: [DONE]\n\n', 200, "dead", "http-error"),
    ],
)
def test_what_a_server_does_wrong_is_said(body, status, words, kind, answering):
    with answering(body, status) as url:
        found = stream(url)
    assert re.search(words, found.error) and (found.status, found.error_kind) == (status, kind)


def test_comments_that_keep_a_connection_open_are_silence(answering):
    """llama.cpp sends one every 30 s, also while it hangs: without this a stream would never end."""
    with answering(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', pings=20) as url:
        found = stream(url, timeout_s=0.1)
    assert found.error_kind == "silent" and "no answer in 0 s" in found.error


def test_nobody_there_is_said():
    found = stream("http://127.0.0.1:9")
    assert "Connect" in found.error and found.status is None and found.error_kind == "unreachable"


def test_a_server_that_lists_no_models_is_an_error(answering):
    async def ask(url):
        async with LoadClient(url):
            pass

    with answering(b'{"data": []}') as url, pytest.raises(RequestFailed, match="lists no model"):
        asyncio.run(ask(url))
    with answering(b"hello") as url, pytest.raises(RequestFailed, match="not JSON"):
        asyncio.run(ask(url))
