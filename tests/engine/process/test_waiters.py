"""Whom the engine owes something, and who gets what it says."""

import pytest

from firesteel.engine.process.messages import StatisticsAnswer
from firesteel.engine.process.waiters import InFlight, Reader
from firesteel.engine.statistics import Statistics
from firesteel.errors import EngineDied, RequestError
from firesteel.types import StepOutput


def step(finish_reason):
    return StepOutput(request_id="a", token_ids=[1], finish_reason=finish_reason, num_cached=0)


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


def test_request_whose_last_output_has_come_is_not_in_flight():
    in_flight = InFlight()
    _, unread = in_flight.add("unread")
    waiting, _ = in_flight.add("waiting")
    unread.give(step("stop"))
    assert in_flight.unanswered() == ["waiting"] and in_flight.is_awaited()
    in_flight.remove(waiting)
    assert not in_flight.is_awaited()


def test_statistics_that_nobody_waits_for_any_more_do_no_harm(run):
    async def live():
        in_flight = InFlight()
        (first, given_up), (second, waiting) = in_flight.ask(), in_flight.ask()
        given_up.cancel()
        for number in (first, second):
            in_flight.hand_out(StatisticsAnswer(number=number, statistics=Statistics()))
        return await waiting

    assert run(live()) == Statistics()
