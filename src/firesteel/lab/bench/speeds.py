"""Computes speeds and latencies of exchanges by llama-benchy's definitions.

One stream: pp = prompt tokens / (time to the first response - latency of the connection), tg = tokens after the
first moment / time from the first to the last. Several streams: both over the whole batch, from the earliest start
to the latest first token, and from the earliest first token to the last.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeVar

from firesteel.lab.bench.series import Series, in_ms, in_tok_s
from firesteel.lab.client.exchange import Exchange

PLAUSIBLE = 0.2  # a server's count of prompt tokens is used if it is within this share of the expected one
MAX_LATENCY = 0.1  # share of the time from which a latency is subtracted; above it the difference is doubtful
WINDOW_S = 1.0  # of the peak speed
T = TypeVar("T")
Batch = Sequence[Exchange]


def summarise(batches: Sequence[Batch], *, expected: int, latency_s: float) -> dict[str, Series]:
    """Returns every figure that has samples. `batches` holds the concurrent exchanges of each run."""
    complete = [[exchange for exchange in batch if exchange.is_whole] for batch in batches]
    exchanges = [exchange for batch in complete for exchange in batch]
    figures = {
        **_speeds(batches, complete, expected, latency_s),
        "peak_tok_s": in_tok_s(_known(map(peak_tok_s, complete))),
        **_latencies(exchanges, latency_s),
    }
    return {name: series for name, series in figures.items() if series.values}


def doubt_latency(batches: Sequence[Batch], latency_s: float) -> str:
    """Returns why the prompt speed of one stream is doubtful; empty if it is not."""
    if max(map(len, batches), default=0) != 1:
        return ""  # nothing is subtracted from the times of several streams
    firsts_s = _known(exchange.ttfr_s for batch in batches for exchange in batch if exchange.is_whole)
    if not firsts_s or latency_s <= MAX_LATENCY * (first_s := statistics.median(firsts_s)):
        return ""
    share = f"{100 * latency_s / first_s:.0f} %" if first_s else "all"
    return f"the latency of {1e3 * latency_s:.1f} ms is {share} of the {1e3 * first_s:.1f} ms it is subtracted from"


def _speeds(
    batches: Sequence[Batch], complete: Sequence[Batch], expected: int, latency_s: float
) -> dict[str, Series]:
    exchanges = [exchange for batch in complete for exchange in batch]
    request_pp = in_tok_s(_known(prompt_tok_s(exchange, expected, latency_s) for exchange in exchanges))
    request_tg = in_tok_s(_known(map(decode_tok_s, exchanges)))
    pp, tg = request_pp, request_tg
    if max(map(len, batches), default=0) > 1:
        pp = in_tok_s(_known(batch_prompt_tok_s(batch, expected) for batch in complete))
        tg = in_tok_s(_known(map(batch_decode_tok_s, complete)))
    return {"pp_tok_s": pp, "tg_tok_s": tg, "pp_request_tok_s": request_pp, "tg_request_tok_s": request_tg}


def _latencies(exchanges: Sequence[Exchange], latency_s: float) -> dict[str, Series]:
    first_responses_s = _known(exchange.ttfr_s for exchange in exchanges)
    return {
        "ttfr_ms": in_ms(first_responses_s),
        "est_ppt_ms": in_ms([max(0.0, seconds - latency_s) for seconds in first_responses_s]),
        "ttft_ms": in_ms(_known(exchange.ttft_s for exchange in exchanges)),
        "tpot_ms": in_ms(_known(exchange.tpot_s for exchange in exchanges)),
        "itl_ms": in_ms([gap for exchange in exchanges for gap in exchange.gaps_s]),
        "e2e_ms": in_ms([exchange.e2e_s for exchange in exchanges]),
    }


def prompt_tokens(exchange: Exchange, expected: int) -> int:
    reported = exchange.prompt_tokens or 0
    return reported if reported and abs(reported - expected) < PLAUSIBLE * expected else expected


def prompt_tok_s(exchange: Exchange, expected: int, latency_s: float) -> float | None:
    seconds = max(0.0, (exchange.ttfr_s or 0.0) - latency_s)
    return prompt_tokens(exchange, expected) / seconds if seconds else None


def decode_tok_s(exchange: Exchange) -> float | None:
    return exchange.decode_tokens / exchange.decode_s if exchange.decode_tokens else None


def batch_prompt_tok_s(batch: Batch, expected: int) -> float | None:
    firsts = _known(exchange.first_token_s for exchange in batch)
    if not firsts:
        return None
    seconds = max(firsts) - min(exchange.start_s for exchange in batch)
    return sum(prompt_tokens(exchange, expected) for exchange in batch) / seconds if seconds > 0 else None


def batch_decode_tok_s(batch: Batch) -> float | None:
    firsts = _known(exchange.first_token_s for exchange in batch)
    tokens = sum(exchange.decode_tokens for exchange in batch)
    if not tokens:
        return None
    last = max(exchange.token_times_s[-1] for exchange in batch if exchange.token_times_s)
    return tokens / (last - min(firsts))


def peak_tok_s(batch: Batch) -> float | None:
    """Returns the most tokens in any window of a second; of shorter answers, all tokens over their time."""
    times = sorted(time for exchange in batch for time in exchange.token_times_s)
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    if times[-1] - times[0] < WINDOW_S:
        return len(times) / (times[-1] - times[0])
    return max(number + 1 - bisect_right(times, time - WINDOW_S) for number, time in enumerate(times)) / WINDOW_S


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]
