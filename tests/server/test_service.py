"""Several choices as one stream: all pieces arrive, one failure ends all, closing leaves no request open."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from firesteel.config import resolve
from firesteel.errors import EngineDied
from firesteel.server.generate.choice import Choice, TextReader
from firesteel.server.http.errors import ApiError
from firesteel.server.observe.access_log import LogEntry
from firesteel.server.service import Service
from firesteel.types import Request, SamplingParams


@pytest.fixture
def engine(new_engine):
    return new_engine("one two three<|return|>")


@pytest.fixture
def start(engine, tokenizer, checkpoint):
    """start(3): the stream of three choices, and the choices."""
    service = Service(engine, checkpoint, resolve({"model": "tiny"}).config)

    def begin(count, **params):
        params = SamplingParams(**params)
        stops = frozenset([tokenizer.special_ids["<|return|>"]])
        requests = [Request(request_id=str(n), token_ids=[1], params=params, stops=stops) for n in range(count)]
        choices = [Choice(request=request, reader=TextReader(tokenizer, params)) for request in requests]
        return service.run(choices, LogEntry("id", shows_text=False)), choices

    return begin


async def texts(stream, count):
    joined = [""] * count
    async with aclosing(stream) as pieces:
        async for index, piece in pieces:
            joined[index] += piece.text
    return joined


@pytest.mark.parametrize("count", [1, 4])
def test_every_choice_is_complete(start, engine, count):
    stream, choices = start(count)
    assert asyncio.run(texts(stream, count)) == ["one two three"] * count
    assert all(choice.num_output == 14 and choice.statistics for choice in choices)
    assert engine.num_open == 0


@pytest.mark.parametrize("count", [1, 3])
def test_stop_string_finishes_the_request_in_the_engine(start, engine, count):
    stream, choices = start(count, stop=("tw",))
    assert asyncio.run(texts(stream, count)) == ["one "] * count
    assert engine.finished == {str(number) for number in range(count)}
    assert all(choice.num_output == 6 and choice.statistics for choice in choices)


@pytest.mark.parametrize("count", [1, 3])
def test_failure_of_one_ends_all(start, engine, count):
    engine.dies_after = 5
    with pytest.raises(EngineDied):
        asyncio.run(texts(start(count)[0], count))
    assert engine.num_open == 0


def test_error_of_the_engine_is_an_api_error(start, engine):
    engine.error = "not numbers"
    with pytest.raises(ApiError, match="not numbers"):
        asyncio.run(texts(start(1)[0], 1))


@pytest.mark.parametrize("count", [1, 3])
def test_closing_the_stream_leaves_no_request_open(start, engine, count):
    async def leave():
        async with aclosing(start(count)[0]) as pieces:
            await anext(pieces)
            assert engine.num_open == count
        return engine.num_open

    assert asyncio.run(leave()) == 0


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("refused", 400)])
def test_refused_request_is_the_clients_fault_and_an_error_is_ours(start, engine, reason, status):
    output = engine.output
    engine.output = lambda *given: replace(output(*given), finish_reason=reason, error="no token can be drawn")
    with pytest.raises(ApiError, match="no token can be drawn") as caught:
        asyncio.run(texts(start(1)[0], 1))
    assert caught.value.status == status
