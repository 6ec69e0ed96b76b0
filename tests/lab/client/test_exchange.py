"""Chunks become an exchange: which count, when their tokens came."""

import pytest

from firesteel.lab.client.exchange import StreamReader


def chunk(text="", *, ids=None, **delta):
    choice = {"delta": {"content": text, **delta}}
    return {"choices": [choice if ids is None else {**choice, "token_ids": ids}]}


def listen(*heard, usage=None):
    """heard: (seconds, chunk)"""
    listener = StreamReader(start_s=0.0)
    for time_s, one in heard:
        listener.hear(one, time_s)
    if usage:
        listener.hear({"choices": [], "usage": usage}, heard[-1][0])
    return listener.finish(heard[-1][0], status=200)


def test_a_role_alone_is_a_response_and_no_token():
    found = listen((1.0, chunk(role="assistant")), (2.0, chunk("a", ids=[1])))
    assert (found.ttfr_s, found.ttft_s, found.output_tokens) == (1.0, 2.0, 1)


def test_reasoning_is_text():
    found = listen((1.0, chunk(reasoning="hm", ids=[1])), (2.0, chunk(reasoning_content="so", ids=[2])))
    assert (found.reasoning, found.output_tokens, found.ttft_s) == ("hmso", 2, 1.0)


def test_tokens_of_one_chunk_lie_evenly_after_the_one_before():
    found = listen((1.0, chunk("a", ids=[1])), (2.0, chunk("bcde", ids=[2, 3, 4, 5])))
    assert found.token_times_s == pytest.approx((1.0, 1.25, 1.5, 1.75, 2.0))
    assert (found.decode_tokens, found.tpot_s, found.counted_by) == (4, 0.25, "token_ids")


def test_tokens_of_the_first_chunk_came_at_once_and_are_not_decoded():
    found = listen((1.0, chunk("abc", ids=[1, 2, 3])), (2.0, chunk("d", ids=[4])))
    assert (found.output_tokens, found.decode_tokens, found.decode_s) == (4, 1, 1.0)


def test_one_chunk_without_ids_makes_usage_the_count():
    found = listen(
        (1.0, chunk("a", ids=[1])), (3.0, chunk("b")), usage={"completion_tokens": 5, "prompt_tokens": 7}
    )
    assert (found.output_tokens, found.counted_by, found.prompt_tokens) == (5, "usage", 7)
    assert found.token_times_s == pytest.approx((1.0, 1.5, 2.0, 2.5, 3.0))


def test_without_ids_and_usage_a_chunk_is_a_token():
    found = listen((1.0, chunk("a")), (3.0, chunk("b")))
    assert (found.output_tokens, found.counted_by, found.gaps_s) == (2, "chunks", (2.0,))
