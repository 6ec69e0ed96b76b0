"""Whom silence is held against: not an engine that owes nobody anything, but one that loads for ever."""

import asyncio
import os
import signal
import time

import pytest

from firesteel.engine import child
from firesteel.engine.client import EngineClient, Reader
from firesteel.engine.messages import StatisticsAnswer
from firesteel.engine.statistics import Statistics
from firesteel.errors import EngineDied, RequestError
from firesteel.types import Request, SamplingParams, StepOutput

HANG_S = 1.0
PAUSE_S = 3.0  # of a reader: in it an engine would be found silent, ended and reported
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


def step(finish_reason):
    return StepOutput(request_id="a", token_ids=[1], finish_reason=finish_reason, num_cached=0)


@pytest.fixture(scope="module")
def client(run, checkpoint, configure):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "LOAD_PATIENCE", 60)
        started = run(EngineClient.start(checkpoint, configure(engine_hang_s=HANG_S)))
        yield started
        run(started.close())


@pytest.fixture
def unharmed(client):
    """The same engine after the test as before it."""
    pid = client.pid
    yield
    assert (client.num_deaths, client.pid, client.is_ready) == (0, pid, True)


async def stop_at_the_finish_reason(client):
    """The generator is neither advanced again nor closed."""
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


async def cancel_and_pause(client):
    outputs = client.generate(request("cancelled", 150))
    await anext(outputs)
    assert client.cancel("cancelled")
    await asyncio.sleep(PAUSE_S)
    await outputs.aclose()


@pytest.mark.usefixtures("unharmed")
def test_readers_that_stop_dawdle_or_cancel_are_not_waited_for(run, client):
    """All in one pause: an engine that owed any of them something would be found silent in it."""

    async def live():
        await asyncio.gather(
            stop_at_the_finish_reason(client), read_slower_than_the_engine(client), cancel_and_pause(client)
        )

    run(live())


@pytest.mark.parametrize(
    "last",
    [step("stop"), None, RequestError("too long"), EngineDied("gone", None)],
    ids=["finished", "cancelled", "rejected", "died"],
)
def test_reader_is_answered_by_whatever_comes_last(last):
    reader = Reader("a")
    reader.give(step(None))
    assert not reader.is_answered
    reader.give(last)
    assert reader.is_answered and reader.inbox.qsize() == 2


def test_request_whose_last_output_has_come_is_not_in_flight(client):
    unread, waiting = Reader("unread"), Reader("waiting")
    unread.give(step("stop"))
    client._readers |= {-1: unread, -2: waiting}
    try:
        assert client._unanswered() == ["waiting"] and client._is_awaited()
        del client._readers[-2]
        assert not client._is_awaited()
    finally:
        for number in (-1, -2):
            client._readers.pop(number, None)


@pytest.mark.usefixtures("none_left")
def test_first_start_that_hangs_while_loading_is_ended_with_its_stacks_in_a_bundle(
    run, configure, stand_in, monkeypatch, tmp_path
):
    stand_in(STUCK)
    monkeypatch.setattr(child, "LOAD_PATIENCE", 5)
    start = time.monotonic()
    with pytest.raises(EngineDied, match="the engine died while it was started: it hung while loading: ") as caught:
        run(asyncio.wait_for(EngineClient.start(tmp_path, configure(engine_hang_s=0.4)), 20))
    assert time.monotonic() - start >= 5 * 0.4 and "no word for 2 s (5 times engine_hang_s)" in str(caught.value)
    assert "read_weights" in (caught.value.bundle / "log.txt").read_text(), "where it hung"


@pytest.mark.usefixtures("none_left")
def test_restart_that_hangs_while_loading_counts_as_a_death(run, configure, stand_in, monkeypatch, tmp_path):
    stand_in(IDLE)
    monkeypatch.setattr(child, "LOAD_PATIENCE", 5)
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


def test_statistics_that_nobody_waits_for_any_more_do_no_harm(run, checkpoint, configure):
    class Process:
        def __init__(self):
            self.messages = [StatisticsAnswer(number=number, statistics=Statistics()) for number in (1, 2)]

        async def receive(self):
            return self.messages.pop(0) if self.messages else None

    async def live():
        client = EngineClient(checkpoint, configure())
        client._process = Process()
        given_up, waiting = (asyncio.get_running_loop().create_future() for _ in range(2))
        client._asked = {1: given_up, 2: waiting}
        given_up.cancel()
        await client._hand_out()
        return await waiting

    assert run(live()) == Statistics()
