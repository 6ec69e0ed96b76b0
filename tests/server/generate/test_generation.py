"""Several requests as one stream: all pieces come, one failure ends all, closing leaves none open."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from firesteel.errors import EngineDied
from firesteel.server.generate.choice import TextReader
from firesteel.server.generate.generation import run_all
from firesteel.server.http.errors import ApiError
from firesteel.types import Request, SamplingParams


@pytest.fixture
def engine(new_engine):
    return new_engine("one two three<|return|>")


@pytest.fixture
def start(engine, tokenizer):
    """start(3): the stream of so many requests, and their readers."""

    def begin(count, **params):
        params = SamplingParams(**params)
        stops = frozenset([tokenizer.special_ids["<|return|>"]])
        requests = [Request(request_id=str(n), token_ids=[1], params=params, stops=stops) for n in range(count)]
        readers = [TextReader(tokenizer, params, num_prompt=1) for _ in requests]
        return run_all(engine, requests, readers), readers

    return begin


async def texts(stream, count):
    found = [""] * count
    async with aclosing(stream) as pieces:
        async for number, piece in pieces:
            found[number] += piece.text
    return found


@pytest.mark.parametrize("count", [1, 4])
def test_every_choice_is_complete(start, engine, count):
    stream, readers = start(count)
    assert asyncio.run(texts(stream, count)) == ["one two three"] * count
    assert all(reader.tally.num_output == 14 and reader.tally.statistics for reader in readers)
    assert engine.num_open == 0


@pytest.mark.parametrize("count", [1, 3])
def test_end_that_the_reader_finds_is_told_to_the_engine(start, engine, count):
    stream, readers = start(count, stop=("tw",))
    assert asyncio.run(texts(stream, count)) == ["one "] * count
    assert engine.finished == {str(number) for number in range(count)}
    assert all(reader.tally.num_output == 6 and reader.tally.statistics for reader in readers)


@pytest.mark.parametrize("count", [1, 3])
def test_failure_of_one_ends_all(start, engine, count):
    engine.dies_after = 5
    with pytest.raises(EngineDied):
        asyncio.run(texts(start(count)[0], count))
    assert engine.num_open == 0


def test_error_of_the_engine_is_the_clients(start, engine):
    engine.error = "not numbers"
    with pytest.raises(ApiError, match="not numbers"):
        asyncio.run(texts(start(1)[0], 1))


@pytest.mark.parametrize("count", [1, 3])
def test_closing_leaves_nothing_open(start, engine, count):
    async def leave():
        async with aclosing(start(count)[0]) as pieces:
            await anext(pieces)
            assert engine.num_open == count
        return engine.num_open

    assert asyncio.run(leave()) == 0


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("refused", 400)])
def test_limits_that_leave_no_token_are_the_requests_own_fault(start, engine, reason, status):
    output = engine.output
    engine.output = lambda *given: replace(output(*given), finish_reason=reason, error="no token can be drawn")
    with pytest.raises(ApiError, match="no token can be drawn") as caught:
        asyncio.run(texts(start(1)[0], 1))
    assert caught.value.status == status
