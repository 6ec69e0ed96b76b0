"""Checks that a server's memory did not grow too far between two measurements."""

from __future__ import annotations

from firesteel.lab.level_result import Checks
from firesteel.lab.memory.footprint import Footprint, measure_growth
from firesteel.lab.memory.gpu import OWN
from firesteel.lab.verdict import Verdict

MAX_BYTES = 10**9


def check_growth(checks: Checks, before: Footprint | None, after: Footprint | None, when: str) -> None:
    """Checks the growth; a server whose processes cannot be seen has no measurements and is not judged."""
    if before is None or after is None:
        checks.add(
            "memory",
            Verdict.UNPROVEN,
            "memory is not visible: the server was running already, or runs in a virtual machine",
        )
        return
    host, touched = measure_growth(before, after)
    is_comparable = None not in (before.gpu, after.gpu) and before.gpu_scope == after.gpu_scope
    gpu = (after.gpu or 0) - (before.gpu or 0) if is_comparable else None
    checks.facts |= {
        "growth_bytes": host,
        "first_used_bytes": touched,
        "gpu_growth_bytes": gpu,
        "gpu_scope": after.gpu_scope,
    }
    words = f"memory {when}: host {host / 1e6:+.0f} MB"
    words += f" and {touched / 1e6:.0f} MB reserved before and now first used" if touched >= 1e6 else ""
    words += describe_gpu(gpu, before.gpu_scope, after.gpu_scope)
    checks.add("memory", max(host, gpu or 0) < MAX_BYTES, words)


def describe_gpu(growth: int | None, before: str | None, after: str | None) -> str:
    """Names the scope if other processes may contribute, or if it changed."""
    if growth is None:
        scopes = f"measured for {before or 'none'}, then for {after or 'none'}"
        return "" if before == after else f", GPU not judged: {scopes}"
    return f", GPU {growth / 1e6:+.0f} MB" + ("" if after == OWN else f" of {after}")
