"""Level 5: this run's benchmark against an earlier one's; compares nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.lab.levels import LevelResult
from firesteel.lab.order import Order


def check_regression(order: Order, results: Sequence[LevelResult]) -> LevelResult:
    """`results` are those of this run so far."""
    if not order.baseline:
        reason = "no --baseline was given; this result can be one for the next run"
        return LevelResult(level="5", passed=True, was_run=False, reason=reason)
    raise NotImplementedError
