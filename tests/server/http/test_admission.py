"""The limit on concurrent requests."""

import threading

import pytest

from firesteel.server.http.admission import Admission
from firesteel.server.http.errors import ApiError


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
