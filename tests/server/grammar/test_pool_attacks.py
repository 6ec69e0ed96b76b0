"""Schemas that once ended or froze the server get a 400, while other streams go on."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec
import pytest

pytest.importorskip("llguidance")

GAP_S = 0.2  # that a stream may pause; asserted at three times the value


def chain(link, count=1100):
    links = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$defs": {**links, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def attacks():
    """Returns schemas by name, with the code of the refusal."""
    rng = random.Random(0)
    refused, stopped = "invalid_schema", "schema_too_complex"
    regexes = [{"type": "string", "pattern": f".*a.{{{count}}}b"} for count in range(30)]
    patterns = [f"^ab{number:04d}.*" for number in range(1000)]
    return {
        "references": (chain(lambda inner: {"anyOf": [inner, {"type": "null"}]}), refused),
        "properties": (chain(lambda inner: {"type": "object", "properties": {"a": inner}}), refused),
        "items": (chain(lambda inner: {"type": "array", "items": inner}), refused),
        "all of": (chain(lambda inner: {"allOf": [inner]}), refused),
        "multiples": ({"anyOf": [{"multipleOf": rng.getrandbits(1000) | 1} for _ in range(1500)]}, refused),
        "patterns": ({"type": "object", "patternProperties": dict.fromkeys(patterns, True)}, refused),
        "wrong type": ({"type": "string", "maxLength": "é" * 60}, refused),
        "unknown type": ({"type": "strange"}, refused),
        "itself": ({"$ref": "#"}, refused),
        "enum": ({"enum": [f"{number:050d}" for number in range(100_000)]}, "invalid_value"),
        "regexes": ({"allOf": regexes}, stopped),
    }


ATTACKS = attacks()


def as_format(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def as_tool(schema):
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return {"tools": [tool], "tool_choice": "required"}


@pytest.mark.parametrize(("send", "field"), [(as_format, "response_format"), (as_tool, "tools")])
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_refused(server, name, send, field):
    schema, code = ATTACKS[name]
    server.engine.facts = msgspec.structs.replace(server.engine.facts, max_context=10**6)
    answer = server.chat(**send(schema))
    assert answer.status == 400, answer.body[:300]
    assert (answer.error["type"], answer.error["code"]) == ("invalid_request_error", code)
    assert answer.error["param"].startswith(field)
    assert len(answer.error["message"]) < 1000
    assert server.chat(**send({"type": "object"})).status == 200


def test_responses_name_their_own_field(server):
    def ask(schema):
        body = {"input": "hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}
        return server.post("/v1/responses", body)

    assert ask({"type": "object"}).status == 200
    assert ask({"type": "strange"}).error["param"] == "text.format"
    assert ask({"enum": [0] * 60_000}).error["param"] == "text.format.schema"


def test_stopped_compilations_are_counted(open_server):
    server = open_server(schema_timeout_s=0.2)
    assert server.chat(**as_format(ATTACKS["regexes"][0])).error["code"] == "schema_too_complex"
    lines = server.get("/metrics").body.decode().splitlines()
    counted = [line for line in lines if line.startswith("firesteel_schema_compilations_stopped_total")]
    assert counted == ['firesteel_schema_compilations_stopped_total{model_name="tiny",reason="time"} 1.0']


def test_cheap_limits_come_before_the_compilation(open_server, monkeypatch):
    """A request that cannot run was compiled for 54 s before the context check."""
    server = open_server(max_num_seqs=1, max_waiting=0)
    tried = []
    monkeypatch.setattr(server.service.trials, "check", tried.append)
    long = server.chat("word " * 5000, **as_format({"type": "object"}))
    assert (long.status, long.error["code"]) == (400, "context_length_exceeded")
    server.service.admission.num_under_way = 1
    assert server.chat(**as_format({"type": "object"})).status == 429
    server.service.admission.num_under_way = 0
    server.engine.is_ready = False
    assert server.chat(**as_format({"type": "object"})).status == 503
    assert tried == []


def test_compilation_ends_when_its_client_leaves(open_server, eventually):
    server = open_server(schema_timeout_s=60.0, schema_memory_mib=8192.0)
    server.chat(**as_format({"type": "object"}))
    (pid,) = server.service.trials.pids
    with connect(server.url) as client:
        post(client, as_format(ATTACKS["regexes"][0]))
        eventually(lambda: cpu_seconds(pid) > 0.2)
    eventually(lambda: not os.path.exists(f"/proc/{pid}"))
    assert server.chat(**as_format({"type": "object"})).status == 200


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def connect(url):
    client = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        yield client
    finally:
        if client.sock is not None:
            client.sock.shutdown(socket.SHUT_RDWR)
        client.close()


def post(client, body):
    data = body if isinstance(body, bytes) else encode(body)
    client.request("POST", "/v1/chat/completions", data, {"content-type": "application/json"})


def encode(fields):
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()


@contextmanager
def stub_server(rate):
    """Starts the server in its own process, in front of an engine that costs nothing."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "firesteel.server.stub.server", str(rate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()


def read_gaps(url, gaps, stop):
    """Reads an endless stream and appends the seconds between two reads."""
    with connect(url) as client:
        post(client, {"stream": True, "ignore_eos": True, "max_tokens": 16_000})
        response, last = client.getresponse(), time.monotonic()
        while not stop.is_set() and response.readline():
            now = time.monotonic()
            gaps.append(now - last)
            last = now


@pytest.mark.slow
def test_stream_beside_attacks_does_not_stall():
    """All attacks at once, from eight clients."""
    bodies = [[encode(send(schema)) for schema, _ in ATTACKS.values()] for send in (as_format, as_tool)]
    with stub_server(100) as (process, url):
        gaps, stop, statuses = [], threading.Event(), []
        stream = threading.Thread(target=read_gaps, args=(url, gaps, stop))
        stream.start()

        def attack(number):
            for body in bodies[number % 2]:
                with connect(url) as client:
                    post(client, body)
                    statuses.append(client.getresponse().status)

        threads = [threading.Thread(target=attack, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        stream.join()
        assert process.poll() is None
    assert set(statuses) == {400} and len(statuses) == 8 * len(ATTACKS)
    assert len(gaps) > 100 and max(gaps) < 3 * GAP_S


@pytest.mark.slow
def test_server_stops_during_a_compilation():
    """A compilation outlived SIGTERM."""
    with stub_server(100) as (process, url), connect(url) as client:
        post(client, as_format(ATTACKS["regexes"][0]))
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        process.wait(10)
