"""Silence is noticed only while something is awaited, and a long step sends signs of life."""

import asyncio
import time

import pytest
import torch

from firesteel.engine.process.liveness import beat_at_calls, beat_at_compiles, until_silent
from firesteel.kernels.ledger import Ledger, Ran

LIMIT_S = 0.2


class Sender:
    """Sends a message every `every_s`, until `quiet_at` seconds after the start."""

    def __init__(self, *, every_s=0.03, quiet_at=float("inf"), awaited_at=0.0):
        self.start, self.every_s, self.quiet_at, self.awaited_at = time.monotonic(), every_s, quiet_at, awaited_at

    def seconds(self):
        return time.monotonic() - self.start

    def count_messages(self):
        return int(min(self.seconds(), self.quiet_at) / self.every_s)

    def is_awaited(self):
        return self.seconds() >= self.awaited_at


def watch(sender, *, limit_s=LIMIT_S, for_s=5.0):
    """Returns the seconds until silence was noticed; raises TimeoutError after `for_s`."""

    async def wait():
        await asyncio.wait_for(until_silent(sender.count_messages, sender.is_awaited, limit_s), for_s)
        return sender.seconds()

    return asyncio.run(wait())


def test_silence_is_noticed_while_something_is_awaited():
    assert watch(Sender(quiet_at=0)) >= LIMIT_S


def test_time_is_counted_from_the_last_message():
    assert watch(Sender(quiet_at=0.4)) >= 0.4 + LIMIT_S - 0.05


def test_time_is_counted_from_when_something_is_awaited():
    """An idle engine sends nothing for hours."""
    assert watch(Sender(quiet_at=0, awaited_at=0.4)) >= 0.4 + LIMIT_S - 0.05


@pytest.mark.parametrize("sender", [{}, {"quiet_at": 0, "awaited_at": 99.0}], ids=["sends", "is not awaited"])
def test_no_alarm_while_the_sender(sender):
    with pytest.raises(TimeoutError):
        watch(Sender(**sender), for_s=3 * LIMIT_S)


def test_limit_of_0_is_no_limit():
    with pytest.raises(TimeoutError):
        watch(Sender(quiet_at=0), limit_s=0, for_s=0.5)


def test_time_in_which_the_program_stood_still_is_not_counted():
    sender = Sender(quiet_at=0)

    async def wait():
        watching = asyncio.create_task(until_silent(sender.count_messages, sender.is_awaited, LIMIT_S))
        await asyncio.sleep(0)
        time.sleep(2 * LIMIT_S)
        await asyncio.sleep(LIMIT_S / 4)
        assert not watching.done()
        await asyncio.wait_for(watching, 5)

    asyncio.run(wait())


@pytest.fixture
def compilation(monkeypatch):
    """Triton's compilation settings, restored after the test."""
    knobs = pytest.importorskip("triton").knobs.compilation
    monkeypatch.setattr(knobs, "listener", None)
    return knobs


@pytest.fixture
def beats():
    return []


def wait_for(condition):
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_called_ops_beat_and_idleness_does_not(beats):
    ledger = Ledger()
    end = beat_at_calls(ledger, lambda: beats.append(time.monotonic()), every_s=0.02)
    time.sleep(0.1)
    assert not beats
    for count in (1, 2):
        ledger.run(Ran("linear", "reference"), int)
        wait_for(lambda count=count: len(beats) == count)
    time.sleep(0.1)
    assert len(beats) == 2, "one per call, none for the silence after it"
    end()


def test_no_beat_after_the_end(beats):
    ledger = Ledger()
    beat_at_calls(ledger, lambda: beats.append(1), every_s=0.02)()
    time.sleep(0.05)
    ledger.run(Ran("linear", "reference"), int)
    time.sleep(0.1)
    assert not beats


def test_each_compiled_kernel_beats(compilation, beats):
    beat_at_compiles(lambda: beats.append(1))
    compilation.listener(src=None, metadata={}, metadata_group={}, times=None, cache_hit=True)
    assert beats == [1]


@pytest.mark.gpu
@pytest.mark.usefixtures("compilation")
def test_kernel_beats_at_its_first_use_only(beats):
    import triton

    @triton.jit
    def idle(x):
        pass

    x = torch.zeros(1, device="cuda")
    beat_at_compiles(lambda: beats.append(1))
    for _ in range(2):
        idle[(1,)](x)
    assert beats == [1]
