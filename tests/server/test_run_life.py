"""The life of a server with Kindling: clients that disconnect, an engine that is killed, a signal to stop."""

import asyncio
import json
import random
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
ENDLESS = {**QUESTION, "stream": True, "ignore_eos": True, "max_tokens": 2000}


def figure(server, name):
    lines = server.get("/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def family(server):
    parent = psutil.Process(server.process.pid)
    return [parent, *(child for child in parent.children(recursive=True) if not tries_grammars(child))]


def tries_grammars(process):
    """Returns whether this is the child that waits for grammars; a zombie has no command and counts as another."""
    try:
        return any(word.endswith("trial.py") for word in process.cmdline())
    except psutil.ZombieProcess:
        return False


def memory_mb(server):
    return sum(process.memory_info().rss for process in family(server)) / 1e6


async def ask(url, body, *, leaves_after_s=None):
    """Returns status and body of an answer that is read to its end; None for a client that left."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        data = json.dumps(body).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1",
            "host: localhost",
            "content-type: application/json",
            "connection: close",
        )
        writer.write("\r\n".join([*head, f"content-length: {len(data)}", "", ""]).encode() + data)
        async with asyncio.timeout(leaves_after_s):
            answer = await reader.read()
    except TimeoutError:
        return None
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest


async def ask_many(url, count, *, concurrency, leaving):
    """Returns the answers of all; a share of the clients leaves at random."""
    rng, gate = random.Random(7), asyncio.Semaphore(concurrency)

    async def one(number):
        leaves_after_s = rng.uniform(0.0, 0.6) if number < leaving * count else None
        body = {**QUESTION, "max_tokens": 16, "stream": number % 2 == 0}
        async with gate:
            return leaves_after_s, await ask(url, body, leaves_after_s=leaves_after_s)

    order = rng.sample(range(count), count)
    return await asyncio.gather(*(one(number) for number in order))


@pytest.fixture
def start(start_serve, tmp_path):
    def begin(*flags):
        return start_serve("--port", "0", "--page-size", "16", "--kv-cache-gib", "0.1", *flags, directory=tmp_path)

    return begin


@pytest.mark.slow
def test_clients_that_disconnect_leave_nothing_behind(start, eventually):
    with start() as server:
        asyncio.run(ask_many(server.url, 16, concurrency=8, leaving=0.2))
        before = memory_mb(server)
        answers = asyncio.run(ask_many(server.url, 200, concurrency=8, leaving=0.2))
        stayed = [answer for leaves_after_s, answer in answers if leaves_after_s is None]
        assert len(stayed) == 160 and all(status == 200 for status, _ in stayed)
        assert all(b"finish_reason" in body for _, body in stayed)
        eventually(lambda: figure(server, "firesteel_requests_under_way") == 0)
        eventually(lambda: figure(server, "firesteel_pages_held") == 0)
        assert figure(server, "vllm:num_requests_running") == figure(server, "vllm:num_requests_waiting") == 0
        assert [process.status() for process in family(server)].count(psutil.STATUS_ZOMBIE) == 0 and len(
            family(server)
        ) == 2
        assert memory_mb(server) - before < 100


@pytest.mark.slow
def test_service_returns_after_its_engine_is_killed(start, eventually):
    with start() as server:

        async def load_and_kill():
            clients = [asyncio.create_task(ask(server.url, ENDLESS)) for _ in range(4)]
            while figure(server, "vllm:num_requests_running") < 4:
                await asyncio.sleep(0.05)
            family(server)[1].send_signal(signal.SIGKILL)
            killed = time.monotonic()
            answers = await asyncio.gather(*clients)
            return answers, time.monotonic() - killed

        answers, seconds = asyncio.run(load_and_kill())
        assert seconds < 5
        for status, body in answers:  # 503 to one that had no token yet
            assert status in (200, 503) and b'"code":"engine_died"' in body and b"[DONE]" not in body
        health = server.get("/health")
        assert health.status == 503 and health.json()["status"] == "degraded"
        refused = server.chat()
        assert refused.status == 503 and refused.headers["retry-after"]
        assert server.get("/health/live").status == 200 and server.get("/metrics").status == 200
        eventually(lambda: server.get("/health").status == 200, 60)
        assert "Paris" in server.chat("What is the capital of France?").body.decode()
        assert figure(server, "firesteel_engine_deaths") == 1


@pytest.mark.slow
def test_stopping_server_finishes_requests_in_flight(start):
    with start() as server:

        async def stop_while_answering():
            client = asyncio.create_task(ask(server.url, {**ENDLESS, "max_tokens": 60}))
            while figure(server, "vllm:num_requests_running") < 1:
                await asyncio.sleep(0.05)
            server.process.send_signal(signal.SIGTERM)
            return await client

        status, body = asyncio.run(stop_while_answering())
        assert (status == 200 and body.rstrip().endswith(b"data: [DONE]\r\n\r\n0")) or b"[DONE]" in body
        assert server.process.wait(30) == 0
        assert "stopped" in server.log[-1]


@contextmanager
def streams(server, count):
    """Clients of endless streams; yields a function that returns their answers."""
    with ThreadPoolExecutor(1) as threads:

        async def read_all():
            return await asyncio.gather(*(ask(server.url, ENDLESS) for _ in range(count)))

        answers = threads.submit(lambda: asyncio.run(read_all()))
        deadline = time.monotonic() + 60
        while figure(server, "firesteel_requests_under_way") < count:
            assert time.monotonic() < deadline and not answers.done()
            time.sleep(0.05)
        yield lambda: answers.result(60)


def check_told(answers, code):
    """503 to clients that had no token yet."""
    for status, body in answers:
        assert status in (200, 503) and f'"code":"{code}"'.encode() in body and b"[DONE]" not in body


@pytest.mark.slow
def test_every_client_is_told_of_20_killed_engines(start, eventually):
    """The deadline is three times the second that is promised: it is about liveness, not about speed."""
    with start("--engine-restarts", "20") as server:
        for number in range(1, 21):
            with streams(server, 20) as read_answers:
                family(server)[1].send_signal(signal.SIGKILL)
                killed = time.monotonic()
                answers = read_answers()
                assert time.monotonic() - killed < 3
            check_told(answers, "engine_died")
            eventually(lambda: server.get("/health").status == 200, 60)
            assert figure(server, "firesteel_engine_deaths") == number
            assert "Paris" in server.chat("What is the capital of France?").body.decode()
            eventually(lambda: figure(server, "firesteel_requests_under_way") == 0)
            eventually(lambda: figure(server, "firesteel_pages_held") == 0)
            processes = family(server)
            assert len(processes) == 2 and psutil.STATUS_ZOMBIE not in [process.status() for process in processes]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 4], ids=["idle", "under load"])
def test_stopped_engine_is_replaced(start, eventually, count):
    with start("--engine-hang-s", "2") as server:
        with streams(server, count) as read_answers:
            family(server)[1].send_signal(signal.SIGSTOP)
            check_told(read_answers(), "engine_died")
        eventually(lambda: server.get("/health").json()["engine_deaths"] == 1, 20)
        eventually(lambda: server.get("/health").status == 200, 60)
        assert "Paris" in server.chat("What is the capital of France?").body.decode()
        assert len(family(server)) == 2


@pytest.mark.slow
def test_server_without_further_restarts_tells_its_clients_and_exits(start):
    """It stayed, alive to every probe, and told clients to send again."""
    with start("--engine-restarts", "0") as server:
        with streams(server, 4) as read_answers:
            family(server)[1].send_signal(signal.SIGKILL)
            answers = read_answers()
        check_told(answers, "engine_failed")
        assert not any(b"sent again" in body for _, body in answers)
        assert server.process.wait(30) == 1
    text = "".join(server.log)
    assert "error: the engine is not restarted: 0 restarts within 600 s is the limit" in text
    assert "SIGKILL" in text and "Traceback" not in text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_short_drain_tells_clients_and_the_exit_is_quiet(start, number):
    with start("--drain-s", "0.5") as server:
        with streams(server, 4) as read_answers:
            server.process.send_signal(number)
            check_told(read_answers(), "stopping")
        assert server.process.wait(30) == 0
    after = "".join(server.log).partition("press Ctrl-C to stop")[2].splitlines()[1:]
    assert "stopping" in after[0] and after[-1] == "stopped"
    assert len(after) == 6 and all("status=503" in line for line in after[1:-1]), after


@pytest.mark.slow
def test_port_in_use_is_reported_before_the_model_is_loaded(start_serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError) as caught, start_serve("--port", str(port)):
            raise AssertionError("it started")
        assert f"port {port}" in str(caught.value) and "--port 0" in str(caught.value)
        assert "loading" not in str(caught.value)
