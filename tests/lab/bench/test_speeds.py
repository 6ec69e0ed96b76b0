"""Speeds of exchanges with known times."""

import pytest

from firesteel.lab.bench.speeds import doubt_latency, peak_tok_s, summarise
from firesteel.lab.client.exchange import Exchange


def exchange(start=0.0, first=1.0, tokens=11, gap=0.1, prompt=100, **fields):
    times = tuple(first + number * gap for number in range(tokens))
    return Exchange(
        start_s=start,
        end_s=times[-1] + 0.5,
        status=200,
        first_response_s=first,
        first_token_s=first,
        chunk_times_s=times,
        token_times_s=times,
        prompt_tokens=prompt,
        output_tokens=tokens,
        **fields,
    )


def test_single_stream():
    figures = summarise([[exchange()]], expected=100, latency_s=0.2)
    assert figures["pp_tok_s"].values == pytest.approx((125.0,))  # 100 / (1 - 0.2)
    assert figures["tg_tok_s"].values == pytest.approx((10.0,))
    assert figures["ttft_ms"].values == pytest.approx((1000.0,))
    assert figures["est_ppt_ms"].values == pytest.approx((800.0,))
    assert figures["tpot_ms"].values == pytest.approx((100.0,))
    assert figures["e2e_ms"].values == pytest.approx((2500.0,))


def test_concurrent_streams_are_one_sample_per_run():
    batch = [exchange(), exchange(start=0.1, first=2.0)]
    figures = summarise([batch, batch], expected=100, latency_s=0.0)
    assert figures["pp_tok_s"].values == pytest.approx((100.0, 100.0))  # 200 / (2 - 0)
    assert figures["tg_tok_s"].values == pytest.approx((10.0, 10.0))  # 20 / (3 - 1)
    assert len(figures["tg_request_tok_s"].values) == 4


def test_implausible_count_of_prompt_tokens_is_ignored():
    assert summarise([[exchange(prompt=500)]], expected=100, latency_s=0.0)["pp_tok_s"].values == (100.0,)
    assert summarise([[exchange(prompt=110)]], expected=100, latency_s=0.0)["pp_tok_s"].values == (110.0,)


def test_failed_requests_do_not_count():
    figures = summarise([[exchange(), exchange(error="broken", gap=9.0)]], expected=100, latency_s=0.0)
    assert figures["tg_request_tok_s"].values == pytest.approx((10.0,))


def test_peak_is_the_best_second():
    slow_then_fast = exchange(tokens=21, gap=0.1)
    assert peak_tok_s([slow_then_fast]) == pytest.approx(10.0, abs=1)
    burst = Exchange(start_s=0, end_s=9, token_times_s=(0.0, 1.0, 2.0, 2.1, 2.2, 2.3, 5.0))
    assert peak_tok_s([burst]) == 4.0  # the one a second earlier is just outside the window


def test_latency_is_doubtful_above_a_tenth_of_what_it_is_subtracted_from():
    assert not doubt_latency([[exchange()]] * 3, latency_s=0.1)
    words = doubt_latency([[exchange()], [exchange(error="broken", first=9.0)]], latency_s=0.12)
    assert words == "the latency of 120.0 ms is 12 % of the 1000.0 ms it is subtracted from"
    assert not doubt_latency([[exchange(), exchange()]], latency_s=0.5)  # not subtracted
    assert not doubt_latency([[exchange(error="broken")]], latency_s=0.5)
