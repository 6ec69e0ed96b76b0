"""Signals that stop a server."""

import signal

import pytest

from firesteel.config import resolve
from firesteel.server.http.admission import Admission
from firesteel.server.run import Server


@pytest.fixture
def hangup():
    """hangup(handler): sets the handler of SIGHUP, until the test ends."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


def new_server(**callbacks):
    return Server(lambda *scope: None, resolve({}).config.server, Admission(1), **callbacks)


def test_closed_terminal_drains(hangup):
    hangup(signal.SIG_DFL)
    server = new_server()
    with server.capture_signals():
        signal.raise_signal(signal.SIGHUP)
        assert server.should_exit and not server.force_exit and server._admission.is_stopping
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_hangup_that_is_ignored_stays_so(hangup):
    """As under nohup."""
    hangup(signal.SIG_IGN)
    server = new_server()
    with server.capture_signals():
        signal.raise_signal(signal.SIGHUP)
        assert not server.should_exit and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_message_that_cannot_be_printed_does_not_keep_the_server_from_stopping():
    def print_to_closed_terminal():
        raise OSError(5, "Input/output error")

    server = new_server(when_stopping=print_to_closed_terminal)
    server.handle_exit(signal.SIGHUP, None)
    assert server.should_exit


def test_third_signal_does_not_wait():
    server = new_server()
    stages = []
    for _ in range(3):
        server.handle_exit(signal.SIGINT, None)
        stages.append((server.should_exit, server._is_hurried, server.force_exit))
    assert stages == [(True, False, False), (True, True, False), (True, True, True)]
