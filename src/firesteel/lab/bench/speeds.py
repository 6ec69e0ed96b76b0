"""Speeds and latencies of exchanges by llama-benchy's definitions; measures nothing.

One stream: pp = prompt tokens / (time to the first response - latency of the connection), tg = tokens after the
first moment / time from the first to the last. Several: both over the whole crowd, from the earliest start to the
latest first token, and from the earliest first token to the last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeVar

from firesteel.lab.bench.series import Series, in_ms, in_tok_s
from firesteel.lab.client.exchange import Exchange

PLAUSIBLE = 0.2  # a server's count of prompt tokens is believed within this share of the expected one
WINDOW_S = 1.0  # of the peak
T = TypeVar("T")
Batch = Sequence[Exchange]


def summarise(batches: Sequence[Batch], *, expected: int, latency_s: float) -> dict[str, Series]:
    """Every figure that has samples; `batches` are the crowds of one workload, one a run."""
    whole = [[one for one in batch if one.is_whole] for batch in batches]
    every = [one for batch in whole for one in batch]
    is_crowd = max((len(batch) for batch in batches), default=0) > 1
    alone_pp = _known(prompt_tok_s(one, expected, latency_s) for one in every)
    alone_tg = _known(decode_tok_s(one) for one in every)
    found = {
        "pp_tok_s": in_tok_s(_known(crowd_prompt_tok_s(one, expected) for one in whole) if is_crowd else alone_pp),
        "tg_tok_s": in_tok_s(_known(crowd_decode_tok_s(one) for one in whole) if is_crowd else alone_tg),
        "pp_request_tok_s": in_tok_s(alone_pp),
        "tg_request_tok_s": in_tok_s(alone_tg),
        "peak_tok_s": in_tok_s(_known(peak_tok_s(one) for one in whole)),
        "ttfr_ms": in_ms(_known(one.ttfr_s for one in every)),
        "est_ppt_ms": in_ms([max(0.0, one - latency_s) for one in _known(one.ttfr_s for one in every)]),
        "ttft_ms": in_ms(_known(one.ttft_s for one in every)),
        "tpot_ms": in_ms(_known(one.tpot_s for one in every)),
        "itl_ms": in_ms([gap for one in every for gap in one.gaps_s]),
        "e2e_ms": in_ms([one.e2e_s for one in every]),
    }
    return {name: series for name, series in found.items() if series.values}


def prompt_tokens(exchange: Exchange, expected: int) -> int:
    said = exchange.prompt_tokens or 0
    return said if said and abs(said - expected) < PLAUSIBLE * expected else expected


def prompt_tok_s(exchange: Exchange, expected: int, latency_s: float) -> float | None:
    seconds = max(0.0, (exchange.ttfr_s or 0.0) - latency_s)
    return prompt_tokens(exchange, expected) / seconds if seconds else None


def decode_tok_s(exchange: Exchange) -> float | None:
    return exchange.decode_tokens / exchange.decode_s if exchange.decode_tokens else None


def crowd_prompt_tok_s(batch: Batch, expected: int) -> float | None:
    firsts = _known(one.first_token_s for one in batch)
    if not firsts:
        return None
    seconds = max(firsts) - min(one.start_s for one in batch)
    return sum(prompt_tokens(one, expected) for one in batch) / seconds if seconds > 0 else None


def crowd_decode_tok_s(batch: Batch) -> float | None:
    firsts, tokens = _known(one.first_token_s for one in batch), sum(one.decode_tokens for one in batch)
    if not tokens:
        return None
    return tokens / (max(one.token_times_s[-1] for one in batch if one.token_times_s) - min(firsts))


def peak_tok_s(batch: Batch) -> float | None:
    """The most tokens of any window of a second; of shorter answers, all over their time."""
    times = sorted(time for one in batch for time in one.token_times_s)
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    if times[-1] - times[0] < WINDOW_S:
        return len(times) / (times[-1] - times[0])
    return max(number + 1 - bisect_right(times, time - WINDOW_S) for number, time in enumerate(times)) / WINDOW_S


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]
