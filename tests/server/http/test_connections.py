"""Connections that ask for nothing are closed, keep nobody out, and fill no log."""

import errno
import logging
import resource
import socket
import threading
import time

import pytest

from firesteel.config import resolve
from firesteel.server import run
from firesteel.server.http import connections
from firesteel.server.http.admission import Admission

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def connect():
    """connect(server): an open connection, closed when the test ends."""
    opened = []

    def open_socket(server):
        host, port = server.url.removeprefix("http://").split(":")
        opened.append(socket.create_connection((host, int(port)), timeout=10))
        return opened[-1]

    yield open_socket
    for end in opened:
        end.close()


def is_closed(end):
    """Returns whether the server closes the connection within the socket's timeout."""
    try:
        while end.recv(65536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def read_answer(end):
    answer = b""
    while b"}" not in answer and (data := end.recv(65536)):
        answer += data
    return answer


@pytest.mark.parametrize("begins", [b"", b"GET /health HTTP/1.1\r\nhost: loc"])
def test_request_whose_headers_do_not_arrive_is_closed(open_server, connect, monkeypatch, begins):
    monkeypatch.setattr(connections, "HEADERS_TIMEOUT_S", 0.2)
    end = connect(open_server())
    end.sendall(begins)
    assert is_closed(end)


def test_headers_that_arrive_byte_by_byte_are_closed(open_server, connect, monkeypatch):
    """Each byte postponed nothing before: there was no limit at all."""
    monkeypatch.setattr(connections, "HEADERS_TIMEOUT_S", 0.3)
    end = connect(open_server())
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for number in range(200):
            end.sendall(b"GET /health HTTP/1.1\r\n" if number == 0 else b"x")
            time.sleep(0.05)


def test_next_request_on_a_connection_has_the_same_limit(open_server, connect, monkeypatch):
    monkeypatch.setattr(connections, "HEADERS_TIMEOUT_S", 0.3)
    end = connect(open_server())
    end.sendall(HEALTH)
    assert b" 200 " in read_answer(end)
    time.sleep(0.6)  # idle between requests: the longer time to keep it alive counts
    end.sendall(HEALTH)
    assert b" 200 " in read_answer(end)
    end.sendall(HEALTH[:9])
    assert is_closed(end)


def test_body_that_goes_on_after_its_answer_is_cut_off(open_server, connect, monkeypatch):
    """Its bytes kept the connection alive without end."""
    monkeypatch.setattr(connections, "HEADERS_TIMEOUT_S", 0.3)
    end = connect(open_server())
    end.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n")
    assert b" 200 " in read_answer(end)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(200):
            end.sendall(b"x")
            time.sleep(0.05)


def test_running_request_has_no_limit_of_headers(open_server, monkeypatch):
    monkeypatch.setattr(connections, "HEADERS_TIMEOUT_S", 0.1)
    server = open_server()
    server.engine.pause_s = 0.02
    start = time.monotonic()
    assert server.chat().status == 200
    assert time.monotonic() - start > 0.2


def test_idle_connection_makes_room_for_a_new_one(open_server, connect, monkeypatch):
    monkeypatch.setattr(run, "raise_connection_limit", lambda: 3)
    server = open_server()
    idle = [connect(server) for _ in range(3)]
    for number in (0, 2, 1):  # the second is idle for the shortest time
        idle[number].sendall(HEALTH)
        assert b" 200 " in read_answer(idle[number])
    newcomers = [connect(server) for _ in range(2)]
    for end in newcomers:
        end.sendall(HEALTH)
        assert b" 200 " in read_answer(end)
    assert is_closed(idle[0]) and is_closed(idle[2])
    idle[1].sendall(HEALTH)
    assert b" 200 " in read_answer(idle[1])


def test_connection_is_refused_if_all_are_busy(open_server, connect, monkeypatch, eventually, caplog):
    monkeypatch.setattr(run, "raise_connection_limit", lambda: 2)
    server = open_server()
    server.engine.pause_s = 0.03
    asking = [threading.Thread(target=server.chat) for _ in range(2)]
    for thread in asking:
        thread.start()
    eventually(lambda: server.engine.num_open == 2)
    with caplog.at_level(logging.WARNING):
        refused = [read_answer(connect(server)) for _ in range(3)]
    assert all(answer.startswith(b"HTTP/1.1 503 ") and b'"overloaded"' in answer for answer in refused)
    assert [record.getMessage() for record in caplog.records].count("connections refused: all are busy") == 1
    for thread in asking:
        thread.join()
    eventually(lambda: server.get("/health").status == 200)


def test_lack_of_descriptors_is_said_once(caplog):
    server = run.Server(None, resolve({}).config.server, Admission(1))
    context = {"message": "out", "exception": OSError(errno.EMFILE, "Too many open files"), "socket": None}
    for _ in range(1000):
        server.handle_loop_error(None, context)
    [line] = caplog.records
    assert "ulimit -n" in line.getMessage() and line.error == "Too many open files"


@pytest.mark.parametrize(
    "context", [{"exception": OSError(errno.EMFILE, "no")}, {"exception": ValueError(), "socket": 1}]
)
def test_other_errors_of_the_loop_are_logged_as_before(context):
    class Loop:
        def default_exception_handler(self, context):
            given.append(context)

    given = []
    run.Server(None, resolve({}).config.server, Admission(1)).handle_loop_error(Loop(), context)
    assert given == [context]


def test_vanished_peer_is_noticed():
    with run.bind(resolve({"port": 0}).config.server) as bound:
        assert bound.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s, interval_s, count = (
            bound.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
    assert idle_s + interval_s * count <= 120


@pytest.mark.slow
@pytest.mark.parametrize(("descriptors", "sockets"), [(1024, 1100), (64, 300)])
def test_more_idle_sockets_than_descriptors_leave_the_server_alive(
    start_stub, connect, tmp_path, descriptors, sockets
):
    """/health was deaf, one core was busy, and the log grew by 4 MB per second."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * sockets)), hard))
    with (tmp_path / "log").open("wb") as log, start_stub(log=log, descriptors=descriptors) as server:
        for _ in range(sockets):
            connect(server)
        for _ in range(5):
            assert server.get("/health").status == 200
            time.sleep(0.5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (tmp_path / "log").stat().st_size < 20_000


CHUNKED = (
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def spell_chunks(size, count):
    text = b'{"prompt": "' + b"x" * (size * count - 14) + b'"}'
    parts = [text[begin : begin + size] for begin in range(0, len(text), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def test_body_in_tiny_chunks_is_refused(open_server, connect):
    """Their framing took seconds of the event loop for each read of the socket: one client stalled all others."""
    server = open_server()
    for size, count, status in ((1, 900, b"200"), (1, 60_000, b"400"), (300, 2000, b"200"), (20, 9000, b"400")):
        end = connect(server)
        end.sendall(CHUNKED + spell_chunks(size, count))
        answer = read_answer(end)
        assert answer.split()[1] == status, (size, count)
        assert status == b"200" or b'"code":"invalid_http"' in answer


@pytest.mark.parametrize("count", [300, 5000])
def test_headers_that_arrive_at_once_are_limited_too(open_server, connect, count):
    end = connect(open_server())
    end.sendall(
        HEALTH.removesuffix(b"\r\n") + b"".join(b"x-%d: %060d\r\n" % (i, i) for i in range(count)) + b"\r\n"
    )
    answer = read_answer(end)
    assert answer.startswith(b"HTTP/1.1 400 ") and b'"code":"invalid_http"' in answer


def test_fault_after_an_early_answer_leaves_no_trace(open_server, connect, caplog):
    """The second answer raised an error within the connection, with a trace in the log for each."""
    end = connect(open_server())
    end.sendall(CHUNKED.replace(b"application/json", b"text/plain"))
    assert read_answer(end).startswith(b"HTTP/1.1 415 ")
    end.sendall(b"no chunk\r\n")
    assert is_closed(end)
    assert "Fatal error" not in caplog.text and "Traceback" not in caplog.text


def test_early_answer_to_a_large_body_arrives(open_server, connect):
    end = connect(open_server(max_body_mib=0.1))
    end.sendall(CHUNKED + spell_chunks(4096, 200))
    assert read_answer(end).startswith(b"HTTP/1.1 413 ")
