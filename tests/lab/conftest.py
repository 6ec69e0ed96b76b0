"""Fixtures of the lab's tests: fake servers that fail in a given way."""

import contextlib
import importlib.util
import sys
import threading
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from firesteel.lab.servers.supervisor import ServerCommand, find_free_port

FAKE = Path(__file__).parent / "fake_server.py"
BROWSER = Path(__file__).parents[1] / "server" / "browser.py"


@pytest.fixture
def fake():
    """fake("hangs", grace_s=1): the command of a server that fails in this way."""

    def make(way="well", **fields):
        port = find_free_port()
        words = (sys.executable, str(FAKE), str(port), way)
        command = ServerCommand(words=words, url=f"http://127.0.0.1:{port}", name="fake", ready_s=20.0, grace_s=3.0)
        return replace(command, **fields)

    return make


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium, as in tests of the server's pages."""
    spec = importlib.util.spec_from_file_location(BROWSER.stem, BROWSER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    opened = module.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def serving():
    """`with serving(handler) as url:` runs a server in this process."""

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
    """is_clean(command): True if no process of this fake server is left, and no new zombie."""
    before = zombies()

    def look(command):
        port = command.words[2]
        left = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if str(FAKE) in words and port in words:
                left.append(process)
        return not left and zombies() <= before

    return look


def zombies():
    """Returns the pids of zombies among this process's descendants."""
    pids = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                pids.add(process.pid)
    return pids
