"""The requests of the mixed workloads: lengths, token ids and arrival times.

Lengths are log-normal, as chats and agents send them (prompt median 545 tokens, output median 122). A seed gives
the same requests on every machine and to every engine, so that engines can be compared on them. Published figures
depend on each draw and on the order of draws: a change here makes other requests.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

LEAST_PROMPT, MOST_PROMPT = 20, 6000
LEAST_OUTPUT, MOST_OUTPUT = 16, 400
PROMPT_LOG_MEAN, PROMPT_LOG_DEVIATION = 6.3, 1.0
OUTPUT_LOG_MEAN, OUTPUT_LOG_DEVIATION = 4.8, 0.6
MOST_TOKEN_ID = 198_999  # gpt-oss's special tokens, from 199998 on, are never drawn
TURN_OUTPUT = 24  # tokens of an answer between two turns
MOST_TOKENS = MOST_PROMPT + MOST_OUTPUT  # of a request of the closed and open loops
LEAST_SCALED_PROMPT, LEAST_SCALED_OUTPUT = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """A request of a workload; `arrival_s` counts from the start and is 0 in a closed loop."""

    name: str
    token_ids: Sequence[int]
    num_output: int
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRequests:
    """Draws requests for a vocabulary; `scale` shortens every length, for a trial on a small model."""

    vocab_size: int
    scale: float = 1.0

    def scaled(self, count: int, least: int = LEAST_SCALED_PROMPT) -> int:
        return max(least, int(count * self.scale))

    def draw_closed(self, in_flight: int, num_requests: int, seed: int) -> list[WorkloadRequest]:
        """Draws all lengths first, then all token ids."""
        rng = random.Random(seed)
        lengths = [self._draw_lengths(rng) for _ in range(num_requests)]
        return [
            WorkloadRequest(
                name=f"closed-{in_flight}-{seed}-{number}",
                token_ids=self.draw_ids(rng, prompt),
                num_output=output,
            )
            for number, (prompt, output) in enumerate(lengths)
        ]

    def draw_open(self, rate: float, seconds: float, seed: int) -> list[WorkloadRequest]:
        """Draws Poisson arrivals within `seconds`, `rate` per second on average."""
        rng = random.Random(seed)
        return [
            WorkloadRequest(
                name=f"open-{rate:g}-{seed}-{number}",
                num_output=output,
                token_ids=self.draw_ids(rng, prompt),
                arrival_s=arrival_s,
            )
            for number, (arrival_s, prompt, output) in enumerate(self._draw_arrivals(rng, rate, seconds))
        ]

    def draw_ids(self, rng: random.Random, count: int) -> list[int]:
        return [rng.randrange(min(self.vocab_size, MOST_TOKEN_ID + 1)) for _ in range(count)]

    def _draw_arrivals(self, rng: random.Random, rate: float, seconds: float) -> Iterator[tuple[float, int, int]]:
        arrival_s = rng.expovariate(rate)
        while arrival_s < seconds:
            yield (arrival_s, *self._draw_lengths(rng))
            arrival_s += rng.expovariate(rate)

    def _draw_lengths(self, rng: random.Random) -> tuple[int, int]:
        """Returns the tokens of a prompt and of its output."""
        prompt = _draw_length(rng, PROMPT_LOG_MEAN, PROMPT_LOG_DEVIATION, LEAST_PROMPT, MOST_PROMPT)
        output = _draw_length(rng, OUTPUT_LOG_MEAN, OUTPUT_LOG_DEVIATION, LEAST_OUTPUT, MOST_OUTPUT)
        return self.scaled(prompt), self.scaled(output, LEAST_SCALED_OUTPUT)


def _draw_length(rng: random.Random, log_mean: float, log_deviation: float, least: int, most: int) -> int:
    return min(most, max(least, int(rng.lognormvariate(log_mean, log_deviation))))


def digest_requests(requests: Iterable[WorkloadRequest]) -> str:
    """Returns 16 hex digits over all token ids and output lengths: equal for equal requests."""
    digest = hashlib.sha256()
    for request in requests:
        digest.update(json.dumps([list(request.token_ids), request.num_output], separators=(",", ":")).encode())
    return digest.hexdigest()[:16]
