"""Requests that name another host, or two lengths of their body, are refused."""

import socket

import pytest

from firesteel.config import resolve
from firesteel.server.http.guard import HostCheck

CHUNKED = b"transfer-encoding: chunked\r\n"


def check(host, allowed=""):
    return HostCheck.of(resolve({"host": host, "allowed_hosts": allowed}).config.server)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.9"])
def test_server_on_loopback_allows_loopback_only(host):
    hosts = check(host)
    for name in (
        "localhost",
        "LOCALHOST:8000",
        "a.localhost",
        "127.0.0.1:80",
        "127.3.2.1",
        "[::1]:8000",
        "localhost.",
    ):
        assert hosts.allows(name), name
    for name in ("evil.example", "localhost.evil.example", "evillocalhost", "10.0.0.1", "", "[::1", "a:b:c", "::1"):
        assert not hosts.allows(name), name


def test_server_on_other_addresses_allows_every_host_unless_names_are_given():
    assert check("0.0.0.0").allows("any.example") and check("::").allows("any.example")
    hosts = check("0.0.0.0", "llm.example, *.b.example")
    for name in ("llm.example", "LLM.example:443", "x.b.example", "x.y.b.example", "localhost", "127.0.0.1"):
        assert hosts.allows(name), name
    for name in ("a.llm.example", "b.example", "xb.example", "any.example", "10.0.0.1"):
        assert not hosts.allows(name), name


def test_given_names_extend_those_of_loopback():
    hosts = check("127.0.0.1", "llm.example,[fd00::1],10.0.0.1")
    assert all(map(hosts.allows, ("llm.example", "[fd00::1]:80", "10.0.0.1", "localhost")))
    assert not hosts.allows("evil.example")
    assert check("127.0.0.1", "*").allows("evil.example")


def test_page_of_another_site_cannot_use_a_server_on_loopback(server):
    """DNS rebinding: the page's own name points at 127.0.0.1."""
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for ask in (
        lambda **headers: server.post("/v1/chat/completions", body, **headers),
        lambda **headers: server.get("/health", **headers),
        lambda **headers: server.get("/metrics", **headers),
    ):
        refused = ask(host="evil.example")
        assert refused.status == 403 and "--allowed-hosts" in refused.error["message"]
        assert refused.error["code"] == "host_not_allowed" and refused.headers["x-request-id"]
        assert ask(host="localhost").status == 200
    assert server.engine.requests


def test_allowed_host_is_served(open_server):
    server = open_server(allowed_hosts="llm.example")
    assert server.get("/health", host="llm.example").status == 200
    assert server.get("/health", host="evil.example").status == 403


def talk(server, sent):
    """Sends raw bytes and reads until the server closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as end:
        end.sendall(sent)
        answer = b""
        while data := end.recv(65536):
            answer += data
        return answer


def test_request_with_two_lengths_is_refused_and_its_connection_closed(server):
    """A proxy that believes the other length would take the rest of the body for the next client's request."""
    hidden = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    answer = talk(server, head + CHUNKED + b"content-length: 5\r\n\r\n0\r\n\r\n" + hidden)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"not both" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_http_1_0_needs_no_host(server):
    assert talk(server, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
