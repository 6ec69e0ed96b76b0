"""An engine that owes nobody anything is not ended for its silence, however slowly its outputs are read."""

import asyncio

import pytest

from firesteel.engine.client import EngineClient, Reader
from firesteel.errors import EngineDied, RequestError
from firesteel.types import Request, SamplingParams, StepOutput

HANG_S = 1.0
PAUSE_S = 3.0  # of a reader: in it an engine would be found silent, ended and reported


def request(name, max_tokens):
    return Request(request_id=name, token_ids=(5, 6, 7), params=SamplingParams(max_tokens=max_tokens))


def step(finish_reason):
    return StepOutput(request_id="a", token_ids=[1], finish_reason=finish_reason, num_cached=0)


@pytest.fixture(scope="module")
def client(run, checkpoint, configure):
    started = run(EngineClient.start(checkpoint, configure(engine_hang_s=HANG_S)))
    yield started
    run(started.close())


@pytest.fixture
def unharmed(client):
    """The same engine after the test as before it."""
    pid = client.pid
    yield
    assert (client.num_deaths, client.pid, client.is_ready) == (0, pid, True)


@pytest.mark.usefixtures("unharmed")
def test_reader_that_stops_at_the_finish_reason_is_not_waited_for(run, client):
    """Its generator is neither advanced again nor closed."""

    async def live():
        outputs = client.generate(request("broken off", 3))
        async for output in outputs:
            if output.finish_reason is not None:
                break
        await asyncio.sleep(PAUSE_S)
        await outputs.aclose()

    run(live())


@pytest.mark.usefixtures("unharmed")
def test_reader_that_is_slower_than_the_engine_is_not_waited_for(run, client):
    async def live():
        outputs = client.generate(request("slow", 3))
        first = await anext(outputs)
        await asyncio.sleep(PAUSE_S)
        return [first, *[output async for output in outputs]]

    outputs = run(live())
    assert len(outputs) == 3 and outputs[-1].finish_reason == "length"


@pytest.mark.usefixtures("unharmed")
def test_cancelled_request_is_not_waited_for(run, client):
    async def live():
        outputs = client.generate(request("cancelled", 150))
        await anext(outputs)
        assert client.cancel("cancelled")
        await asyncio.sleep(PAUSE_S)
        await outputs.aclose()

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
