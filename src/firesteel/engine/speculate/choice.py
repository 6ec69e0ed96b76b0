"""How many tokens of each request to draft, so that tokens per second are most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

LEAST_GAIN = 1.02  # of the rate without drafts, below which nothing is drafted: estimates err by some per cent


def choose_counts(
    chances: Sequence[Sequence[float]],
    plain_ms: float,
    verify_ms: Callable[[int], float],
    most_rows: int,
) -> list[int]:
    """Returns the number of drafted tokens per request that a step should verify.

    `chances` are, per request, those that all of its drafted tokens up to each position are accepted, falling. A
    step without drafts takes `plain_ms`, one that verifies `verify_ms(rows)`, with a row per request and drafted
    token, at most `most_rows`.
    """
    requests = len(chances)
    best, best_rate = 0, LEAST_GAIN * requests / plain_ms
    candidates = sorted(
        (
            (-chance, position, request)
            for request, own in enumerate(chances)
            for position, chance in enumerate(own)
        ),
    )[: max(0, most_rows - requests)]
    tokens = float(requests)
    for number, (negative, *_) in enumerate(candidates, 1):
        tokens -= negative
        rate = tokens / verify_ms(requests + number)
        if rate > best_rate:
            best, best_rate = number, rate
    counts = [0] * requests
    for _, position, request in candidates[:best]:
        counts[request] = max(counts[request], position + 1)
    return counts


def list_gains(
    chances: Sequence[float], requests: int, plain_ms: float, verify_ms: Callable[[int], float]
) -> list[float]:
    """Returns the rate with 1, 2, ... drafted tokens of each of some equal requests, against none."""
    tokens, gains = 1.0, []
    for drafted, chance in enumerate(chances, 1):
        tokens += chance
        gains.append(tokens * plain_ms / verify_ms(requests * (1 + drafted)))
    return gains
