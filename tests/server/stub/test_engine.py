"""The stub engine answers the messages of the real one."""

import asyncio
import time
from contextlib import aclosing

import pytest

from firesteel.config import resolve
from firesteel.engine.process.client import EngineClient
from firesteel.hub import BUILT_IN
from firesteel.types import Request, SamplingParams

PROGRAM = ("-m", "firesteel.server.stub.engine")


@pytest.fixture
def talk(tmp_path):
    """talk(rate, work): runs work(client) with a stub of that rate."""

    def run(rate, work):
        async def live():
            config = resolve({"crash_dir": str(tmp_path)}).config
            client = await EngineClient.start(BUILT_IN, config, program=(*PROGRAM, str(rate)))
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(live())

    return run


def request(client, name, max_tokens, **fields):
    params = SamplingParams(max_tokens=max_tokens, **fields)
    return client.generate(Request(request_id=name, token_ids=[1], params=params))


@pytest.mark.slow
def test_tokens_come_at_the_requested_rate(talk):
    async def work(client):
        async def one(name):
            return [output async for output in request(client, name, 30)]

        start = time.monotonic()
        made = await asyncio.gather(*(one(str(number)) for number in range(4)))
        return made, time.monotonic() - start, await client.statistics()

    made, seconds, statistics = talk(200, work)
    assert [len(outputs) for outputs in made] == [30] * 4 and seconds > 0.5
    assert all(outputs[-1].finish_reason == "length" and outputs[-1].statistics for outputs in made)
    assert statistics.output_tokens == 120 and statistics.requests_running == 0


@pytest.mark.slow
def test_abandoned_and_finished_requests_end(talk):
    async def work(client):
        async with aclosing(request(client, "left", 10_000)) as outputs:
            await anext(outputs)
        last, params = None, SamplingParams(max_tokens=10_000)
        async with client.open([Request(request_id="found", token_ids=[1], params=params)]) as stream:
            while outputs := await stream.take():
                stream.finish(0)
                last = outputs[0][-1]
        return last, await client.statistics()

    last, statistics = talk(100, work)
    assert last.finish_reason == "stop" and last.token_ids == []
    assert statistics.requests_running == 0 and statistics.requests_cancelled == 1
