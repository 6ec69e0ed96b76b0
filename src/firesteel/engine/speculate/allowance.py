"""How much time drafts may lose: a small share of all, so that a wrong expectation cannot cost more."""

from __future__ import annotations

SHARE = 0.007  # of the decoding time that drafts may lose in the long run
FIRST_STEPS = 12.0  # plain steps that they may lose at first
MOST_STEPS = 24.0  # the same after gains: a few unlucky steps in a row, each of which may lose three, are no reason
LEAST_STEPS = -1.0  # debt beyond which a loss counts no further
PROBE_STEPS, AGAIN_STEPS = 1.0, 4.0  # that must be left for a probe, and to draft again after all were spent


class Allowance:
    """Counts in plain steps of the same requests what drafts have gained and lost."""

    def __init__(self) -> None:
        self.steps = FIRST_STEPS
        self.is_spent = False

    @property
    def has_probe(self) -> bool:
        return self.steps >= PROBE_STEPS

    def count(self, ms: float, plain_ms: float, tokens: float) -> None:
        """Counts a step that took `ms` and gave each request `tokens`, 1 without drafts, on average."""
        lasted = ms / plain_ms
        self._add(tokens - lasted + SHARE * min(lasted, tokens))

    def count_plain(self) -> None:
        """Counts a step that drafts neither sped up nor delayed."""
        self._add(SHARE)

    def _add(self, steps: float) -> None:
        self.steps = min(max(self.steps + steps, LEAST_STEPS), MOST_STEPS)
        self.is_spent = self.steps < (AGAIN_STEPS if self.is_spent else 0.0)
