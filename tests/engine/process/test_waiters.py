"""Pending readers: whether the engine owes them a message, and that each gets its own."""

import asyncio

import pytest

from firesteel.engine.process.messages import Cancel, Output, Rejected, StatisticsAnswer, Step
from firesteel.engine.process.waiters import OutputStream, Waiter, Waiters
from firesteel.engine.statistics import Statistics
from firesteel.errors import EngineDied, RequestError


def output(number, finish_reason=None):
    return Output(number=number, token_ids=[1], finish_reason=finish_reason, num_cached=0)


@pytest.mark.parametrize(
    "last",
    [output(0, "stop"), RequestError("too long"), EngineDied("gone", None)],
    ids=["ends", "rejected", "died"],
)
def test_waiter_is_answered_by_its_last_output_or_an_error(last):
    waiter = Waiter("a", 0, asyncio.Queue())
    waiter.give(output(0))
    assert not waiter.is_answered
    waiter.give(last)
    assert waiter.is_answered and waiter.queue.qsize() == 2


def test_request_whose_last_output_arrived_is_not_awaited():
    waiters = Waiters()
    (unread,), _ = waiters.add(["unread"])
    (waiting,), _ = waiters.add(["waiting"])
    waiters.hand_out(Step(outputs=[output(unread, "stop")]))
    assert waiters.unanswered() == ["waiting"] and waiters.is_awaited()
    waiters.remove(waiting)
    assert not waiters.is_awaited()


def test_statistics_whose_reader_was_cancelled_are_dropped(run):
    async def live():
        waiters = Waiters()
        (first, given_up), (second, waiting) = waiters.ask(), waiters.ask()
        given_up.cancel()
        for number in (first, second):
            waiters.hand_out(StatisticsAnswer(number=number, statistics=Statistics()))
        return await waiting

    assert run(live()) == Statistics()


@pytest.fixture
def opened():
    """Two requests of one stream: the waiters, their numbers, the stream, and the messages it sends."""
    waiters, sent = Waiters(), []
    numbers, queue = waiters.add(["a", "b"])
    return waiters, numbers, OutputStream(numbers, queue, sent.append), sent


def test_stream_gives_all_that_arrived_by_index_and_ends_with_the_last_request(run, opened):
    waiters, (first, second), stream, sent = opened

    async def live():
        waiters.hand_out(Step(outputs=[output(first), output(second, "stop")]))
        waiters.hand_out(Step(outputs=[output(first, "length")]))
        return await stream.take(), await stream.take()

    taken, rest = run(live())
    assert {index: len(outputs) for index, outputs in taken.items()} == {0: 2, 1: 1} and rest == {}
    stream.cancel()
    assert sent == []


def test_outputs_before_a_failure_are_read_first(run, opened):
    waiters, (first, second), stream, sent = opened

    async def live():
        waiters.hand_out(Step(outputs=[output(first)]))
        waiters.hand_out(Rejected(number=second, kind="RequestError", reason="too long"))
        assert await stream.take() == {0: [output(first)]}
        for _ in range(2):
            with pytest.raises(RequestError, match="too long"):
                await stream.take()

    run(live())
    stream.cancel()
    assert sent == [Cancel(number=first, finished=False)]


def test_finish_is_sent_once_and_not_for_a_request_that_ended(run, opened):
    waiters, (first, second), stream, sent = opened

    async def live():
        waiters.hand_out(Step(outputs=[output(first), output(second, "stop")]))
        await stream.take()

    run(live())
    for index in (0, 1, 0):
        stream.finish(index)
    assert sent == [Cancel(number=first, finished=True)]
