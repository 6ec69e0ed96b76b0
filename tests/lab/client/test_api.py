"""Answers, and the ways in which they fail."""

import pytest

from firesteel.lab.client.api import Api, text_of
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.servers.supervisor import SupervisedServer, find_free_port


@pytest.fixture
def ask(fake, tmp_path):
    """ask("answers-500"): the client of such a server."""
    stack = []

    def start(way="well", **fields):
        server = SupervisedServer(fake(way), tmp_path)
        stack.append(server)
        server.wait_until_ready()
        return Api(url=server.command.url, model="fake", **fields)

    yield start
    for server in stack:
        server.stop()


def test_answers_are_complete_or_streamed(ask):
    api = ask()
    assert "Paris" in text_of(api.chat("capital?"))
    assert api.complete([1, 2, 3])["usage"]["prompt_tokens"] == 3
    events = api.stream("/v1/chat/completions", api.question("capital?", max_tokens=5))
    assert len(events) == 6 and events[-1]["usage"]["prompt_tokens"] == 5
    assert len(api.stream("/v1/chat/completions", api.question("x", max_tokens=50), leave_after=2)) == 2


@pytest.mark.parametrize(
    ("way", "kind", "words"),
    [
        ("answers-500", "http-error", "answered 500.*internal error"),
        ("answers-garbage", "garbage", "not JSON.*html"),
        ("half-an-answer", "garbage", "no choice"),
        ("hangs", "silent", "no answer in 1 s"),
    ],
)
def test_each_failure_has_its_kind(way, kind, words, ask):
    with pytest.raises(RequestFailed, match=words) as caught:
        ask(way, timeout_s=1.0).chat("capital?")
    assert caught.value.kind == kind and caught.value.status == (500 if way == "answers-500" else None)


def test_missing_server_is_unreachable():
    with pytest.raises(RequestFailed, match="ConnectError") as caught:
        Api(url=f"http://127.0.0.1:{find_free_port()}").get("/v1/models")
    assert caught.value.kind == "unreachable"


def test_served_model_and_its_context_are_found(ask):
    assert ask().find_model() == ("fake", 8192)
