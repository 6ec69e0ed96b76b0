"""Level 5: this run's benchmark against an earlier one's; computes nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.compare import compare
from firesteel.lab.levels import Checks, LevelResult
from firesteel.lab.order import Order
from firesteel.lab.report import read_result


def check_regression(order: Order, result: Mapping[str, Any]) -> LevelResult:
    """`result` is this run's so far."""
    if not order.baseline:
        reason = "no --baseline was given; this result can be one for the next run"
        return LevelResult(level="5", passed=True, was_run=False, reason=reason)
    try:
        found = compare(read_result(Path(order.baseline)), result)
    except UserError as error:
        return LevelResult(level="5", passed=False, reason=f"nothing to compare: {error}")
    checks = Checks()
    checks.figures["comparison"] = found.as_dict()
    checks.add("speed and memory", not found.regressions, found.in_words())
    return checks.result("5")
