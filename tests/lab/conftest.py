"""What tests of the lab share: fake servers that fail as they are told to."""

import contextlib
import sys
import threading
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from firesteel.lab.servers.supervisor import ServerCommand, find_free_port

FAKE = Path(__file__).parent / "fake_server.py"


@pytest.fixture
def fake():
    """fake("hangs", grace_s=1): the command of a server that fails in this way."""

    def make(way="well", **fields):
        port = find_free_port()
        words = (sys.executable, str(FAKE), str(port), way)
        command = ServerCommand(words=words, url=f"http://127.0.0.1:{port}", name="fake", ready_s=20.0, grace_s=3.0)
        return replace(command, **fields)

    return make


@pytest.fixture
def serving():
    """`with serving(handler) as url:` a server of this process, where it is."""

    @contextlib.contextmanager
    def serve(handler):
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()

    return serve


@pytest.fixture
def is_clean():
    """Whether nothing of a fake server is left, by its command line, and no zombie that was not there before."""
    before = zombies()

    def look(command):
        port = command.words[2]
        left = []
        for one in psutil.process_iter():
            try:
                words = one.cmdline()
            except psutil.Error:
                continue
            if str(FAKE) in words and port in words:
                left.append(one)
        return not left and zombies() <= before

    return look


def zombies():
    """Numbers of those among this process's children and theirs."""
    found = set()
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if one.status() == psutil.STATUS_ZOMBIE:
                found.add(one.pid)
    return found
