"""Addresses, failures and events."""

import httpx2
import pytest

from firesteel.errors import UserError
from firesteel.lab.client.wire import DONE, RequestFailed, explain, find_context, find_root, read_event, read_models


@pytest.mark.parametrize("url", ["localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1/"])
def test_addresses_are_accepted_in_every_notation(url):
    assert find_root(url) == "http://localhost:8000"


def test_path_of_an_address_is_kept():
    assert find_root("https://host/api/v1") == "https://host/api"


@pytest.mark.parametrize("url", ["ftp://x", "http://", "host:port", "http://[::1", ""])
def test_invalid_address_is_refused(url):
    with pytest.raises(UserError, match="http://HOST:PORT"):
        find_root(url)


def test_line_is_an_object_the_end_or_nothing():
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
def test_wrong_event_is_described(line, kind, words):
    with pytest.raises(RequestFailed, match=words) as caught:
        read_event(line)
    assert caught.value.kind == kind


def test_silence_and_a_missing_server_are_different_failures():
    assert explain(httpx2.ReadTimeout(""), "/x", 3.0).kind == "silent"
    assert "no answer in 3 s" in str(explain(httpx2.ReadTimeout(""), "/x", 3.0))
    assert explain(httpx2.ConnectTimeout(""), "/x", 3.0).kind == "unreachable"
    assert explain(httpx2.ConnectError("refused"), "/x", 3.0).kind == "unreachable"


def test_first_model_of_the_list_is_the_served_one():
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
def test_context_is_read_in_the_format_of_each_engine(model, context):
    assert find_context(model) == context
