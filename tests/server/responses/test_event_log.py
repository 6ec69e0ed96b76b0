"""Followers of a response get every event once, in order, whenever they begin."""

import asyncio

from firesteel.server.responses.answers import Event
from firesteel.server.responses.event_log import EventLog


def events(begin, end):
    return [Event(type="x", sequence_number=number) for number in range(begin, end)]


async def numbers_after(log, begin=0):
    return [int(data.split(b'"sequence_number":')[1].split(b"}")[0]) async for data in log.follow(begin)]


def test_early_late_and_resumed_followers():
    async def main():
        log = EventLog()
        early = asyncio.create_task(numbers_after(log))
        await asyncio.sleep(0)
        log.add(events(0, 2))
        resumed = asyncio.create_task(numbers_after(log, 1))
        await asyncio.sleep(0)
        log.add(events(2, 3))
        log.add(events(3, 4))
        await asyncio.sleep(0)
        log.close()
        late = await numbers_after(log, 3)
        return await early, await resumed, late, await numbers_after(log, 9)

    early, resumed, late, beyond = asyncio.run(asyncio.wait_for(main(), 10))
    assert (early, resumed, late, beyond) == ([0, 1, 2, 3], [1, 2, 3], [3], [])


def test_bytes_are_counted():
    async def main():
        log = EventLog()
        log.add(events(0, 2))
        log.close()
        return log.num_bytes, sum([len(data) async for data in log.follow()])

    counted, sent = asyncio.run(main())
    assert counted == sent > 0
