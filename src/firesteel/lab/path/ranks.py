"""Ranks of vLLM in which our plugin loaded the model: each writes one line, and none may be missing."""

from __future__ import annotations

import re
from collections.abc import Iterable

RANK = re.compile(r"firesteel: rank (\d+) of (\d+): gpt-oss plugin")
# Ray shows one of several similar lines unless this is set.
CURE = "with Ray, set RAY_DEDUP_LOGS=0; else that rank runs vLLM's own gpt-oss: install firesteel on its node"


def judge_ranks(log: Iterable[str]) -> list[str]:
    """Returns a fault if some ranks wrote their line and others did not."""
    matches = [match for line in log if (match := RANK.search(line))]
    reported = {int(match[1]) for match in matches}
    expected = set(range(max((int(match[2]) for match in matches), default=0)))
    if missing := sorted(expected - reported):
        ranks = ", ".join(map(str, missing))
        return [f"the plugin did not report rank {ranks} of {len(expected)}: {CURE}"]
    return []
