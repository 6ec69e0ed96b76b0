"""Chunks become an exchange: which of them count, and when their tokens came."""

import pytest

from firesteel.lab.client.exchange import StreamReader


def chunk(text="", *, ids=None, **delta):
    choice = {"delta": {"content": text, **delta}}
    return {"choices": [choice if ids is None else {**choice, "token_ids": ids}]}


def read(*received, usage=None):
    """`received` holds pairs of (seconds, chunk)."""
    reader = StreamReader(start_s=0.0)
    for time_s, piece in received:
        reader.add(piece, time_s)
    if usage:
        reader.add({"choices": [], "usage": usage}, received[-1][0])
    return reader.finish(received[-1][0], status=200)


def test_role_alone_is_a_response_but_not_a_token():
    exchange = read((1.0, chunk(role="assistant")), (2.0, chunk("a", ids=[1])))
    assert (exchange.ttfr_s, exchange.ttft_s, exchange.output_tokens) == (1.0, 2.0, 1)


def test_reasoning_is_text():
    exchange = read((1.0, chunk(reasoning="hm", ids=[1])), (2.0, chunk(reasoning_content="so", ids=[2])))
    assert (exchange.reasoning, exchange.output_tokens, exchange.ttft_s) == ("hmso", 2, 1.0)


def test_tokens_of_a_chunk_are_spread_since_the_previous_one():
    exchange = read((1.0, chunk("a", ids=[1])), (2.0, chunk("bcde", ids=[2, 3, 4, 5])))
    assert exchange.token_times_s == pytest.approx((1.0, 1.25, 1.5, 1.75, 2.0))
    assert (exchange.decode_tokens, exchange.tpot_s, exchange.counted_by) == (4, 0.25, "token_ids")


def test_tokens_of_the_first_chunk_are_not_decode_tokens():
    exchange = read((1.0, chunk("abc", ids=[1, 2, 3])), (2.0, chunk("d", ids=[4])))
    assert (exchange.output_tokens, exchange.decode_tokens, exchange.decode_s) == (4, 1, 1.0)


def test_chunk_without_ids_makes_usage_the_count():
    exchange = read(
        (1.0, chunk("a", ids=[1])), (3.0, chunk("b")), usage={"completion_tokens": 5, "prompt_tokens": 7}
    )
    assert (exchange.output_tokens, exchange.counted_by, exchange.prompt_tokens) == (5, "usage", 7)
    assert exchange.token_times_s == pytest.approx((1.0, 1.5, 2.0, 2.5, 3.0))


def test_chunk_is_a_token_without_ids_and_usage():
    exchange = read((1.0, chunk("a")), (3.0, chunk("b")))
    assert (exchange.output_tokens, exchange.counted_by, exchange.gaps_s) == (2, "chunks", (2.0,))
