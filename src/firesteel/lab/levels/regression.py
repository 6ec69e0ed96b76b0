"""Level 5: this run's benchmark against an earlier one's; computes nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.compare import baseline
from firesteel.lab.compare.compare import compare, find_bench, find_visible
from firesteel.lab.level import Checks, LevelResult
from firesteel.lab.report.report import read_result
from firesteel.lab.spec import Order


def check_regression(order: Order, result: Mapping[str, Any], folder: Path) -> LevelResult:
    """`result` is this run's so far. Without --baseline it is held to the first run of this order in the folder."""
    if not baseline.counts(result):
        reason = "nothing to compare: the benchmark did not pass, or does not count"
        return LevelResult(level="5", passed=False, was_run=False, reason=reason)
    device = str((result.get("surroundings") or {}).get("device", ""))
    place = Path(order.baseline) if order.baseline else baseline.find_place(order, device, folder)
    if not order.baseline and not place.exists():
        return begin(result, place)
    return hold(order, result, place)


def begin(result: Mapping[str, Any], place: Path) -> LevelResult:
    """There is no earlier run: this one is kept for those that come."""
    baseline.keep(result, place)
    visible = find_visible(find_bench(result))
    checks = Checks()
    checks.figures |= {"baseline": str(place), "visible_change": visible}
    seen = "" if visible is None else f"; a change of {100 * visible:.1f} % would show in half of its figures"
    words = f"the first run of this order here: kept as the baseline of the next ({place}){seen}"
    checks.add("baseline", place.is_file(), words)
    return checks.result("5")


def hold(order: Order, result: Mapping[str, Any], place: Path) -> LevelResult:
    try:
        before = read_result(place)
        found = compare(before, result, threshold=order.slower / 100, memory_gb=order.more_gb)
    except UserError as error:
        return LevelResult(level="5", passed=False, reason=f"nothing to compare: {error}")
    checks = Checks()
    checks.figures |= {"comparison": found.as_dict(), "baseline": str(place)}
    since = f"against the run of {before.get('time_utc', 'unknown time')}"
    cure = f" (a change that is wanted: remove {place})" if found.regressions and not order.baseline else ""
    checks.add("speed and memory", not found.regressions, f"{found.in_words()}, {since}{cure}")
    return checks.result("5")
