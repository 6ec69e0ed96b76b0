"""Mutated requests: each gets an answer below 500, none disturbs a stream beside it or ends an engine."""

import collections
import http.client
import json
import re
import threading
import time

import pytest

from tests.server.mutation import GOOD, mutate

STALL_S = 3 * 0.2  # three times what is promised: this is about hanging, not about speed
CLIENTS = 8


def send(connection, path, body):
    """Returns status and content of an answer; a long one is left after its first part."""
    connection.request("POST", path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    content = answer.read(1 << 16)
    if not answer.isclosed():
        connection.close()
    return answer.status, content


def send_all(server, numbers):
    """Returns the numbers of mutated requests by status, and the contents of refusals without OpenAI's shape."""
    numbers, lock = iter(numbers), threading.Lock()
    by_status, odd = collections.defaultdict(list), []

    def work():
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            status, content = send(connection, *mutate(number))
            with lock:
                by_status[status].append(number)
                if status >= 400 and not is_error(content):
                    odd.append((number, content[:200]))
        connection.close()

    workers = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return by_status, odd


def is_error(content):
    try:
        return isinstance(json.loads(content)["error"]["message"], str)
    except (ValueError, KeyError, TypeError):
        return False


class StreamWatch:
    """Reads one stream after the other and keeps the longest silence within them."""

    def __init__(self, server):
        self.address = server.url.removeprefix("http://")
        self.longest_s, self.streams, self.is_over = 0.0, 0, False
        self._thread = threading.Thread(target=self._read)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        self._thread.join()

    def _read(self):
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "max_tokens": 1000,
            "ignore_eos": True,
        }
        while not self.is_over:
            connection = http.client.HTTPConnection(self.address, timeout=60)
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            last = None
            while answer.readline():
                now = time.monotonic()
                self.longest_s, last = max(self.longest_s, now - (last or now)), now
            connection.close()
            self.streams += last is not None


def count_deaths(server):
    metrics = server.get("/metrics").body.decode()
    return float(re.search(r"^firesteel_engine_deaths(?:{.*})? (\S+)$", metrics, re.MULTILINE)[1])


def test_requests_that_are_mutated_are_good_before(kindling_server):
    for path, body in GOOD:
        answer = kindling_server.post(path, body, authorization="Bearer right")
        assert answer.status == 200, (path, body, answer.body)


@pytest.mark.parametrize("count", [100, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutated_requests_get_no_500_and_stall_no_stream(start_stub, count, request):
    with start_stub(rate=500) as server:
        with StreamWatch(server) as watch:
            by_status, odd = send_all(server, range(count))
        assert count_deaths(server) == 0 and server.process.poll() is None
    counts = {status: len(numbers) for status, numbers in sorted(by_status.items())}
    assert not {status: numbers[:5] for status, numbers in by_status.items() if status >= 500}, counts
    assert not odd[:5] and counts[200] > count / 20 and counts[400] > count / 5, counts
    assert watch.streams
    if request.node.get_closest_marker("slow"):  # alone on its machine
        assert watch.longest_s < STALL_S


@pytest.mark.slow
def test_mutated_requests_end_no_engine(start_serve, tmp_path):
    flags = ("--port", "0", "--max-model-len", "128", "--crash-dir", str(tmp_path))
    with start_serve(*flags, directory=tmp_path) as server:
        by_status, odd = send_all(server, range(100_000, 102_000))
        assert count_deaths(server) == 0 and server.process.poll() is None
    assert not {status: numbers[:5] for status, numbers in by_status.items() if status >= 500}
    assert not odd[:5]
