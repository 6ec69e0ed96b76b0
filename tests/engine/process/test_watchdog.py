"""Silence is noticed while something is awaited, and only then."""

import asyncio
import time

import pytest

from firesteel.engine.process.watchdog import until_silent

LIMIT_S = 0.2


class Other:
    """Who is listened to: speaks every `every_s`, until `quiet_at` seconds after the start."""

    def __init__(self, *, every_s=0.03, quiet_at=float("inf"), awaited_at=0.0):
        self.start, self.every_s, self.quiet_at, self.awaited_at = time.monotonic(), every_s, quiet_at, awaited_at

    def seconds(self):
        return time.monotonic() - self.start

    def count_heard(self):
        return int(min(self.seconds(), self.quiet_at) / self.every_s)

    def is_awaited(self):
        return self.seconds() >= self.awaited_at


def watch(other, *, limit_s=LIMIT_S, for_s=5.0):
    """Seconds until silence was noticed; TimeoutError where it was not within `for_s`."""

    async def wait():
        await asyncio.wait_for(until_silent(other.count_heard, other.is_awaited, limit_s), for_s)
        return other.seconds()

    return asyncio.run(wait())


def test_silence_of_one_who_is_awaited_is_noticed():
    assert watch(Other(quiet_at=0)) >= LIMIT_S


def test_time_is_counted_from_the_last_word():
    assert watch(Other(quiet_at=0.4)) >= 0.4 + LIMIT_S - 0.05


def test_time_is_counted_from_when_something_is_awaited():
    """An idle engine says nothing for hours."""
    assert watch(Other(quiet_at=0, awaited_at=0.4)) >= 0.4 + LIMIT_S - 0.05


@pytest.mark.parametrize(
    "other", [{}, {"quiet_at": 0, "awaited_at": 99.0}], ids=["speaks now and then", "is not awaited"]
)
def test_no_alarm_while_it(other):
    with pytest.raises(TimeoutError):
        watch(Other(**other), for_s=3 * LIMIT_S)


def test_limit_of_0_is_never():
    with pytest.raises(TimeoutError):
        watch(Other(quiet_at=0), limit_s=0, for_s=0.5)


def test_time_in_which_the_program_stood_still_is_not_counted():
    other = Other(quiet_at=0)

    async def wait():
        watching = asyncio.create_task(until_silent(other.count_heard, other.is_awaited, LIMIT_S))
        await asyncio.sleep(0)
        time.sleep(2 * LIMIT_S)
        await asyncio.sleep(LIMIT_S / 4)
        assert not watching.done()
        await asyncio.wait_for(watching, 5)

    asyncio.run(wait())
