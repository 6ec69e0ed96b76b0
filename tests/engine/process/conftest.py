"""Fixtures of tests with an engine in its own process."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from firesteel.config import resolve

FACTS = {
    "device": "CPU",
    "max_context": 256,
    "vocab_size": 272,
    "pages": 9,
    "page_size": 4,
    "max_num_seqs": 64,
    "cache_bytes": 99,
    "load_s": 1.0,
    "kernels": {},
}
CHANNEL = """
import faulthandler, signal, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
def say_ready(*of):
    channel.sendall({ready})
"""


@pytest.fixture(scope="module")
def one_thread_a_child():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def run():
    """Returns a function that runs coroutines, all on one loop."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def configure(tmp_path_factory, one_thread_a_child):
    """Returns settings of a small engine on the CPU, with its own crash folder and the given settings."""

    def make(**settings):
        folder = tmp_path_factory.mktemp("crashes")
        return resolve(
            {
                "device": "cpu",
                "memory_reserve_gib": 0.0,
                "page_size": 4,
                "kv_cache_gib": 0.002,
                "prefix_caching": False,
                "crash_dir": str(folder),
                **settings,
            }
        ).config

    return make


@pytest.fixture(scope="session")
def children():
    """Returns a function that lists the child processes that were started and not reaped."""
    return lambda: set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def none_left(children):
    """Checks that the test leaves no process; one that was killed may take a moment to be reaped."""
    before = children()
    yield
    deadline = time.monotonic() + 5
    while children() != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children() == before


@pytest.fixture
def stand_in(monkeypatch):
    """Runs a program instead of engines; it has a `channel` and `say_ready`, which sends what is returned."""
    # imported here: tests of liveness also run where msgspec is missing
    from firesteel.engine.process import handle
    from firesteel.engine.process.messages import Ready, pack

    ready = Ready(**FACTS)

    def use(program):
        monkeypatch.setattr(handle, "PROGRAM", ("-c", CHANNEL.format(ready=pack(ready)) + program))
        return ready

    return use
