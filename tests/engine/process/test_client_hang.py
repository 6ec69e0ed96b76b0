"""Detection of hung engines: readers that stop or pause are not a hang, loading forever is."""

import asyncio
import os
import signal
import time

import pytest

from firesteel.engine.process import handle
from firesteel.engine.process.client import EngineClient
from firesteel.errors import EngineDied
from firesteel.types import Request, SamplingParams

HANG_S = 1.0
PAUSE_S = 3.0  # of a reader; long enough for a silent engine to be killed and reported
IDLE = """
say_ready()
time.sleep(60)
"""
STUCK = """
faulthandler.register(signal.SIGUSR1)
def read_weights():
    time.sleep(60)
read_weights()
"""


def request(name, max_tokens):
    return Request(request_id=name, token_ids=(5, 6, 7), params=SamplingParams(max_tokens=max_tokens))


@pytest.fixture(scope="module")
def client(run, checkpoint, configure):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handle, "LOAD_PATIENCE", 60)
        started = run(EngineClient.start(checkpoint, configure(engine_hang_s=HANG_S)))
        yield started
        run(started.close())


@pytest.fixture
def unharmed(client):
    """Checks that the test leaves the same engine running."""
    pid = client.pid
    yield
    assert (client.num_deaths, client.pid, client.is_ready) == (0, pid, True)


async def stop_at_the_finish_reason(client):
    """Reads to the finish reason and leaves the generator neither advanced nor closed."""
    outputs = client.generate(request("broken off", 3))
    async for output in outputs:
        if output.finish_reason is not None:
            break
    await asyncio.sleep(PAUSE_S)
    await outputs.aclose()


async def read_slower_than_the_engine(client):
    outputs = client.generate(request("slow", 3))
    first = await anext(outputs)
    await asyncio.sleep(PAUSE_S)
    rest = [output async for output in outputs]
    assert len([first, *rest]) == 3 and rest[-1].finish_reason == "length"


async def leave_and_pause(client):
    outputs = client.generate(request("left", 150))
    await anext(outputs)
    await outputs.aclose()
    await asyncio.sleep(PAUSE_S)


@pytest.mark.usefixtures("unharmed")
def test_readers_that_stop_pause_or_leave_are_not_waited_for(run, client):
    """All readers share one pause: an engine with a pending output would count as hung in it."""

    async def live():
        await asyncio.gather(
            stop_at_the_finish_reason(client), read_slower_than_the_engine(client), leave_and_pause(client)
        )

    run(live())


@pytest.mark.usefixtures("none_left")
def test_first_start_that_hangs_is_killed_with_its_stacks_in_a_bundle(
    run, configure, stand_in, monkeypatch, tmp_path
):
    stand_in(STUCK)
    monkeypatch.setattr(handle, "LOAD_PATIENCE", 5)
    start = time.monotonic()
    with pytest.raises(EngineDied, match="the engine died while starting: it hung while loading: ") as caught:
        run(asyncio.wait_for(EngineClient.start(tmp_path, configure(engine_hang_s=0.4)), 20))
    assert time.monotonic() - start >= 5 * 0.4 and "no message for 2 s (5 times engine_hang_s)" in str(caught.value)
    assert "read_weights" in (caught.value.bundle / "log.txt").read_text(), "where it hung"


@pytest.mark.usefixtures("none_left")
def test_restart_that_hangs_while_loading_counts_as_a_death(run, configure, stand_in, monkeypatch, tmp_path):
    stand_in(IDLE)
    monkeypatch.setattr(handle, "LOAD_PATIENCE", 5)
    config = configure(engine_hang_s=0.4, engine_restarts=2)

    async def live():
        client = await EngineClient.start(tmp_path, config)
        stand_in(STUCK)
        os.kill(client.pid, signal.SIGKILL)
        while client.is_ready:
            await asyncio.sleep(0.01)
        with pytest.raises(EngineDied, match=r"2 restarts within 600 s is the limit .* it hung while loading: "):
            await asyncio.wait_for(client.statistics(), 30)
        assert client.num_deaths == 3
        await client.close()

    run(live())
    assert len(os.listdir(config.process.crash_dir)) == 3
