"""Chance that a drafted token is accepted if those before it were, learnt from the drafts verified so far."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

FIRST_CHANCE = 0.8  # expected before anything was verified: high, as drafts that are never tried teach nothing
FIRST_WEIGHT = 8.0  # verified drafts that this, or what is expected of a request, counts as
MEMORY = 0.98  # weight of a draft after each later one


class Acceptance:
    """Counts by position in the draft. Older drafts count less, since texts change, also where they were shorter.

    A position that has not been tried lately is expected to be as good as the one before it, so that it is tried.
    """

    def __init__(self, overall: Acceptance | None = None) -> None:
        """Builds that of a request if `overall` is given, which it is expected to equal."""
        self._overall = overall
        self._tried: list[float] = []
        self._accepted: list[float] = []

    def add(self, drafted: int, accepted: int) -> None:
        """Learns that of `drafted` tokens the first `accepted` were right."""
        missing = drafted - len(self._tried)
        self._tried += [0.0] * missing
        self._accepted += [0.0] * missing
        for position in range(len(self._tried)):
            is_tried = position < min(drafted, accepted + 1)
            self._tried[position] = MEMORY * self._tried[position] + is_tried
            self._accepted[position] = MEMORY * self._accepted[position] + (is_tried and position < accepted)

    def list_chances(self, count: int) -> list[float]:
        """Returns for each of `count` positions the chance that its token is accepted if those before it are."""
        expected = [] if self._overall is None else self._overall.list_chances(count)
        chances: list[float] = []
        for position in range(count):
            prior = expected[position] if expected else chances[-1] if chances else FIRST_CHANCE
            tried = self._tried[position] if position < len(self._tried) else 0.0
            accepted = self._accepted[position] if position < len(self._accepted) else 0.0
            chances.append((accepted + FIRST_WEIGHT * prior) / (tried + FIRST_WEIGHT))
        return chances

    def chances(self, count: int) -> list[float]:
        """Returns for each of `count` positions the chance that all drafted tokens up to it are accepted."""
        return list(accumulate(self.list_chances(count), mul))
