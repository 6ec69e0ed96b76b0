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


def list_rank_rows(log: Iterable[str]) -> list[str]:
    """Returns what the ranks ran as lines of a ledger: `linear=triton mxfp8[bf16+none]` is `... mxfp8 @bf16`."""
    rows: dict[str, None] = {}
    for line in log:
        if not RANK.search(line):
            continue
        for row in line.partition("; ")[2].strip().split(", "):
            words, bracket, verdicts = row.rstrip("]").partition("[")
            proofs = [f"@{verdict}" for verdict in verdicts.split("+") if bracket and verdict != "none"]
            rows[" ".join([words, *proofs])] = None
    return list(rows)


def awaits_ranks(log: Sequence[str]) -> bool:
    """Returns True if the plugin loaded the model, and not every rank has written its line yet."""
    reported, expected = find_ranks(log)
    return any(LOADED in line for line in log) and (not expected or reported < expected)


def find_ranks(log: Iterable[str]) -> tuple[set[int], set[int]]:
    """Returns the ranks that wrote their line, and all ranks by those lines."""
    matches = [match for line in log if (match := RANK.search(line))]
    reported = {int(match[1]) for match in matches}
    return reported, set(range(max((int(match[2]) for match in matches), default=0)))
