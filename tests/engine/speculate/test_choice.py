"""The number of drafted tokens that gives most tokens per second."""

import itertools
import random

from firesteel.engine.speculate.choice import LEAST_GAIN, choose_counts


def rate(counts, chances, verify_ms):
    drawn = sum(1 + sum(own[:count]) for own, count in zip(chances, counts, strict=True))
    return drawn / verify_ms(len(counts) + sum(counts))


def test_choice_is_the_best_of_all():
    rng, chosen = random.Random(2), set()
    for _ in range(300):
        lengths = [rng.randrange(4) for _ in range(rng.randrange(1, 4))]
        chances = [sorted((rng.random() for _ in range(length)), reverse=True) for length in lengths]
        first, slope = rng.uniform(0.5, 3), rng.uniform(0, 1)

        def verify_ms(rows, first=first, slope=slope):
            return first + slope * rows

        plain, most = verify_ms(len(chances)), rng.choice([4, 8])
        counts = choose_counts(chances, plain, verify_ms, most)
        options = itertools.product(*(range(len(own) + 1) for own in chances))
        best = max(
            (rate(option, chances, verify_ms) for option in options if len(option) + sum(option) <= most), default=0
        )
        assert len(counts) + sum(counts) <= max(most, len(chances))
        if any(counts):
            assert rate(counts, chances, verify_ms) >= best - 1e-9
        else:
            assert best <= LEAST_GAIN * len(chances) / plain + 1e-9
        chosen.add(sum(counts))
    assert len(chosen) > 5


def test_nothing_is_drafted_if_it_costs_what_it_gains():
    assert choose_counts([[0.5, 0.25]], 1.0, lambda rows: rows, 8) == [0]


def test_surer_request_has_more_tokens():
    counts = choose_counts([[0.9, 0.8, 0.7], [0.3, 0.1, 0.0]], 1.0, lambda rows: 0.7 + 0.15 * rows, 8)
    assert counts[0] == 3 and counts[1] == 0
