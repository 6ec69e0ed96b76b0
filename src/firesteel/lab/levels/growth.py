"""Whether a server's memory grew too far between two looks at it; looks at nothing itself."""

from __future__ import annotations

from firesteel.lab.level import Checks
from firesteel.lab.memory.footprint import Footprint, measure_growth
from firesteel.lab.memory.gpu import OWN

MOST_BYTES = 10**9


def check_growth(checks: Checks, before: Footprint | None, after: Footprint | None, when: str) -> None:
    """Of a server that the lab did not start there are no looks, and nothing is judged."""
    if before is None or after is None:
        checks.add("memory", True, "memory of a server that ran already is not seen")
        return
    host, touched = measure_growth(before, after)
    gpu = None if before.gpu is None or after.gpu is None else after.gpu - before.gpu
    gpu = gpu if before.gpu_scope == after.gpu_scope else None
    checks.figures |= {
        "growth_bytes": host, "first_used_bytes": touched, "gpu_growth_bytes": gpu, "gpu_scope": after.gpu_scope,
    }  # fmt: skip
    words = f"memory {when}: host {host / 1e6:+.0f} MB"
    words += f" and {touched / 1e6:.0f} MB reserved before, now first used" if touched >= 1e6 else ""
    words += describe_gpu(gpu, before.gpu_scope, after.gpu_scope)
    checks.add("memory", max(host, gpu or 0) < MOST_BYTES, words)


def describe_gpu(growth: int | None, before: str | None, after: str | None) -> str:
    """Where others may have a part in it, or nothing is known, it says so."""
    if growth is None:
        return "" if before == after else f", GPU not judged: seen of {before or 'none'}, then of {after or 'none'}"
    return f", GPU {growth / 1e6:+.0f} MB" + ("" if after == OWN else f" of {after}")
