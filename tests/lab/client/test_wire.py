"""Addresses, failures and events, as both clients of a server read them."""

import httpx2
import pytest

from firesteel.errors import UserError
from firesteel.lab.client.wire import DONE, RequestFailed, explain, find_context, find_root, read_event, read_models


@pytest.mark.parametrize("url", ["localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1/"])
def test_addresses_are_read_as_users_write_them(url):
    assert find_root(url) == "http://localhost:8000"


def test_address_behind_a_path_keeps_it():
    assert find_root("https://host/api/v1") == "https://host/api"


@pytest.mark.parametrize("url", ["ftp://x", "http://", "host:port", "http://[::1", ""])
def test_address_that_is_none_is_refused(url):
    with pytest.raises(UserError, match="http://HOST:PORT"):
        find_root(url)


def test_events_are_objects_the_end_or_nothing():
    assert read_event(b'data: {"choices": []}') == {"choices": []}
    assert read_event(b"data: [DONE]") is DONE
    assert read_event(b": a comment") is None and read_event(b"") is None


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        (b"data: {nonsense", "garbage", "not JSON"),
        (b"data: [1]", "garbage", "not an object"),
        (b'data: {"error": {"message": "no room"}}', "http-error", "no room"),
    ],
)
def test_event_that_is_wrong_says_how(line, kind, words):
    with pytest.raises(RequestFailed, match=words) as caught:
        read_event(line)
    assert caught.value.kind == kind


def test_silence_is_another_failure_than_nobody_there():
    assert explain(httpx2.ReadTimeout(""), "/x", 3.0).kind == "silent"
    assert "no answer in 3 s" in str(explain(httpx2.ReadTimeout(""), "/x", 3.0))
    assert explain(httpx2.ConnectTimeout(""), "/x", 3.0).kind == "unreachable"
    assert explain(httpx2.ConnectError("refused"), "/x", 3.0).kind == "unreachable"


def test_first_model_of_the_list_is_the_one_that_is_served():
    assert read_models({"data": [{"id": "a", "max_model_len": 9}, {"id": "b"}]}, "") == ("a", 9)


@pytest.mark.parametrize("content", [{"data": []}, {"data": None}, [], {"data": ["a"]}, {}])
def test_list_without_a_model_is_garbage(content):
    with pytest.raises(RequestFailed, match="lists no model") as caught:
        read_models(content, "http://host")
    assert caught.value.kind == "garbage"


@pytest.mark.parametrize(
    ("model", "context"),
    [({"max_model_len": 99}, 99), ({"meta": {"n_ctx": 7, "n_ctx_train": 9}}, 7), ({"meta": None}, None)],
)
def test_context_is_read_as_each_engine_writes_it(model, context):
    assert find_context(model) == context
