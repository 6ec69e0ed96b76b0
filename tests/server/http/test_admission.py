"""The API key and the limit on concurrent requests."""

import threading

import pytest

from firesteel.server.http.admission import Admission, KeyCheck
from firesteel.server.http.errors import ApiError


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", "Basic right", "right", "Bearer right2", "Bearer righ"]
)
def test_wrong_key_is_refused(given):
    with pytest.raises(ApiError) as caught:
        KeyCheck("right").check(given)
    assert caught.value.status == 401 and "right" not in str(caught.value)


def test_right_key_or_no_key_required_is_accepted():
    KeyCheck("right").check("Bearer right")
    KeyCheck("right").check("bearer  right ")
    KeyCheck("").check(None)


def test_key_protects_all_but_health_metrics_and_the_page(open_server):
    server = open_server(api_key="right")
    for path in ("/health", "/health/live", "/metrics", "/", "/openapi.json"):
        assert server.get(path).status == 200, path
    for path in ("/v1/models", "/ledger"):
        answer = server.get(path)
        assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert server.get(path, authorization="Bearer right").status == 200
    assert server.chat().status == 401
    assert server.post("/tokenize", {"prompt": "a"}).status == 401
    assert server.post("/tokenize", {"prompt": "a"}, authorization="Bearer right").status == 200


def test_choices_beyond_the_limit_are_refused():
    admission = Admission(3)
    with admission.admit(2):
        with admission.admit(1), pytest.raises(ApiError) as caught, admission.admit(1):
            raise AssertionError
        assert caught.value.status == 429 and caught.value.retry_s
        assert admission.num_under_way == 2
    with pytest.raises(ApiError) as caught, admission.admit(4):
        raise AssertionError
    assert caught.value.status == 400 and admission.num_under_way == 0


def test_stopping_server_admits_no_request():
    admission = Admission(3)
    admission.is_stopping = True
    with pytest.raises(ApiError) as caught, admission.admit():
        raise AssertionError
    assert caught.value.status == 503


@pytest.mark.slow
def test_overloaded_server_sends_retry_after(open_server, eventually):
    server = open_server(max_num_seqs=1, max_waiting=0)
    server.engine.pause_s = 0.05
    first = threading.Thread(target=server.chat)
    first.start()
    eventually(lambda: server.engine.num_open == 1)
    answer = server.chat(stream=True)
    assert (
        answer.status == 429 and answer.headers["retry-after"] == "1" and answer.error["type"] == "rate_limit_error"
    )
    first.join()
    assert server.chat().status == 200
