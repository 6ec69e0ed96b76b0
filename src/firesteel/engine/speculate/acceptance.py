"""Chance that a drafted token is accepted if those before it were, learnt from the drafts verified so far."""

from __future__ import annotations

from collections.abc import Callable

FIRST_CHANCE = 0.8  # expected before anything was verified: high, as drafts that are never tried teach nothing
FIRST_WEIGHT = 4.0  # verified drafts that the expectation counts as
MEMORY = 0.99  # weight of a draft after each later one


class Acceptance:
    """Counts by position in the draft. Older drafts count less, since texts change."""

    def __init__(self, prior: Callable[[int], float] = lambda position: FIRST_CHANCE) -> None:
        """Starts from `prior`, the chance by position that is expected of the first drafts."""
        self._prior = prior
        self._tried: list[float] = []
        self._accepted: list[float] = []

    def add(self, drafted: int, accepted: int) -> None:
        """Learns that of `drafted` tokens the first `accepted` were right."""
        missing = drafted - len(self._tried)
        self._tried += [0.0] * missing
        self._accepted += [0.0] * missing
        for position in range(min(drafted, accepted + 1)):
            self._tried[position] = MEMORY * self._tried[position] + 1
            self._accepted[position] = MEMORY * self._accepted[position] + (position < accepted)

    def chance(self, position: int) -> float:
        """Returns the chance that the token at `position`, from 0, is accepted if those before it are."""
        tried = self._tried[position] if position < len(self._tried) else 0.0
        accepted = self._accepted[position] if position < len(self._accepted) else 0.0
        return (accepted + FIRST_WEIGHT * self._prior(position)) / (tried + FIRST_WEIGHT)

    def chances(self, count: int) -> list[float]:
        """Returns for each of `count` positions the chance that all drafted tokens up to it are accepted."""
        chances, product = [], 1.0
        for position in range(count):
            product *= self.chance(position)
            chances.append(product)
        return chances
