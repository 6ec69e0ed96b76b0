"""Supervision of the engine's process: hangs while idle, shortages of the system, and the limit on restarts."""

import asyncio
import errno
import os
import signal
import socket

import pytest

from firesteel.engine.process import client as client_module
from firesteel.engine.process import handle
from firesteel.engine.process.client import EngineClient
from firesteel.errors import EngineDied, EngineFailed
from firesteel.types import Request, SamplingParams

IDLE = """
say_ready()
time.sleep(60)
"""


async def ask(client, max_tokens=5):
    request = Request(request_id="r", token_ids=(5, 6, 7), params=SamplingParams(max_tokens=max_tokens))
    return [token async for output in client.generate(request) for token in output.token_ids]


async def until(condition, patience_s=20.0):
    async with asyncio.timeout(patience_s):
        while not condition():
            await asyncio.sleep(0.01)


async def kill(client):
    """Returns when the death was noticed."""
    os.kill(client.pid, signal.SIGKILL)
    await until(lambda: not client.is_ready)


@pytest.fixture
def patient_load(monkeypatch):
    monkeypatch.setattr(handle, "LOAD_PATIENCE", 60)


@pytest.mark.slow
@pytest.mark.usefixtures("none_left", "patient_load")
def test_stopped_engine_is_killed_and_replaced_idle_and_under_load(run, checkpoint, configure):
    async def live():
        client = await EngineClient.start(checkpoint, configure(engine_hang_s=1.0))
        expected = await ask(client)
        await asyncio.sleep(2.5)
        assert client.num_deaths == 0, "an idle engine answers"

        os.kill(client.pid, signal.SIGSTOP)
        await until(lambda: not client.is_ready)
        assert await ask(client) == expected and client.num_deaths == 1

        answer = asyncio.create_task(ask(client, 200))
        await until(lambda: client._process.last_plan)
        os.kill(client.pid, signal.SIGSTOP)
        with pytest.raises(EngineDied, match=r"it hung: no message for 1 s \(engine_hang_s\)"):
            await asyncio.wait_for(answer, 20)
        assert await ask(client) == expected and client.num_deaths == 2
        await client.close()

    run(live())


@pytest.mark.usefixtures("none_left")
def test_engine_that_is_never_killed_is_not_asked_while_idle(run, configure, stand_in, monkeypatch, tmp_path):
    """The stand-in answers nothing."""
    stand_in(IDLE)
    monkeypatch.setattr(client_module, "MAX_IDLE_POLL_S", 0.05)

    async def live():
        client = await EngineClient.start(tmp_path, configure(engine_hang_s=0.0))
        await asyncio.sleep(0.5)
        assert client.is_ready and client.num_deaths == 0 and not client._waiters.is_awaited()
        await kill(client)
        await client.close()

    run(live())


@pytest.mark.usefixtures("none_left")
def test_restart_waits_until_descriptors_are_free(run, configure, stand_in, monkeypatch, tmp_path, caplog):
    """The supervisor ended here, and the server had failed for ever. Attempts do not count as restarts."""
    stand_in(IDLE)
    monkeypatch.setattr(client_module, "SPAWN_RETRY_S", 0.05)
    attempts, make = [], socket.socketpair

    def fail():
        attempts.append(1)
        if len(attempts) <= 5:
            raise OSError(errno.EMFILE, "Too many open files")
        return make()

    async def live():
        client = await EngineClient.start(tmp_path, configure(engine_restarts=1))
        monkeypatch.setattr(handle.socket, "socketpair", fail)
        await kill(client)
        await until(lambda: client.is_ready)
        assert len(attempts) == 6 and client.failure is None and client.num_deaths == 1
        await kill(client)
        await client.close()

    with caplog.at_level("WARNING", logger="firesteel"):
        run(live())
    assert [record.message for record in caplog.records] == [
        "no process can be created: [Errno 24] Too many open files; trying every 0.05 s"
    ]


@pytest.mark.usefixtures("none_left")
def test_shortage_that_does_not_end_is_a_failure(run, configure, stand_in, monkeypatch, tmp_path):
    stand_in(IDLE)
    monkeypatch.setattr(client_module, "SPAWN_RETRY_S", 0.05)

    def fail():
        raise OSError(errno.EMFILE, "Too many open files")

    async def live():
        client = await EngineClient.start(tmp_path, configure(engine_restarts=1))
        monkeypatch.setattr(client_module, "RESTART_WINDOW_S", 0.3)
        monkeypatch.setattr(handle.socket, "socketpair", fail)
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: len(client._restarts) == 1)
        client._restarts[0] += 60  # still within the window at the deadline
        with pytest.raises(EngineFailed, match=r"no process could be created for 0\.3 s: .*Too many open files"):
            await client.statistics()
        await client.close()

    run(live())


@pytest.mark.usefixtures("none_left")
def test_restarts_are_forgotten_as_the_window_passes(run, configure, stand_in, monkeypatch, tmp_path):
    stand_in(IDLE)

    async def live():
        client = await EngineClient.start(tmp_path, configure(engine_restarts=1))
        for _ in range(2):
            await kill(client)
            await until(lambda: client.is_ready)
            client._restarts[0] -= client_module.RESTART_WINDOW_S + 1
        await kill(client)
        await until(lambda: client.is_ready)
        await kill(client)
        await until(lambda: client.failure is not None)
        assert client.num_deaths == 4 and "1 restarts within 600 s is the limit" in client.failure
        await client.close()

    run(live())


def refuse_process(*arguments, **options):
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def refuse_thread(*arguments):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("target", "refuse", "message"),
    [
        ("subprocess.Popen", refuse_process, "temporarily unavailable"),
        ("LogTail", refuse_thread, "can't start new thread"),
    ],
)
@pytest.mark.usefixtures("none_left")
def test_process_that_cannot_be_created_leaves_nothing(stand_in, monkeypatch, target, refuse, message):
    stand_in(IDLE)
    monkeypatch.setattr(f"firesteel.engine.process.handle.{target}", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=message):
        handle.EngineProcess()
    assert os.listdir("/proc/self/fd") == before
