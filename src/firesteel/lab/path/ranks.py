"""Ranks of vLLM in which our plugin loaded the model: each writes one line, and none may be missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

RANK = re.compile(r"firesteel: rank (\d+) of (\d+): gpt-oss plugin")
# Ray shows one of several similar lines unless this is set.
CURE = "with Ray, set RAY_DEDUP_LOGS=0; else that rank runs vLLM's own gpt-oss: install firesteel on its node"
LOADED = "firesteel: read the weights in"  # written by each rank some time before its line


def judge_ranks(log: Iterable[str]) -> list[str]:
    """Returns a fault if some ranks wrote their line and others did not."""
    reported, expected = find_ranks(log)
    if missing := sorted(expected - reported):
        ranks = ", ".join(map(str, missing))
        return [f"the plugin did not report rank {ranks} of {len(expected)}: {CURE}"]
    return []


def awaits_ranks(log: Sequence[str]) -> bool:
    """Returns True if the plugin loaded the model, and not every rank has written its line yet."""
    reported, expected = find_ranks(log)
    return any(LOADED in line for line in log) and (not expected or reported < expected)


def find_ranks(log: Iterable[str]) -> tuple[set[int], set[int]]:
    """Returns the ranks that wrote their line, and all ranks by those lines."""
    matches = [match for line in log if (match := RANK.search(line))]
    reported = {int(match[1]) for match in matches}
    return reported, set(range(max((int(match[2]) for match in matches), default=0)))
