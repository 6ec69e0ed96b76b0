"""The message in a line of a log, without the prefixes of loggers, workers and containers.

Patterns of the rules begin where the message begins, so that a word elsewhere in a line decides nothing.
"""

from __future__ import annotations

import re

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PREFIX = re.compile(
    r"""(?:
    \([\w.-]+(?:\ [\w.-]+)*\ pid=\d+[^)]*\)                          # (EngineCore_DP0 pid=7), Ray's workers
    | [\w.-]+\s+\|(?=\s)                                             # docker compose
    | \[\d{4}-\d\d-\d\d[^\]]*\]                                      # SGLang: [2026-11-18 12:00:00 TP0]
    | (?:\d{4}-)?\d\d-\d\d[\ T]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?(?:\ -)?  # 11-18 12:00:00, 2026-11-18 12:00:00,123 -
    | \d+\.\d\d\.\d{3}\.\d{3}\ [IWED]                                # llama.cpp with --log-timestamps
    | (?:INFO|WARNING|ERROR|DEBUG)(?:\ -)?:?(?=\s)
    | \[[\w.-]+\.(?:py|cpp|cu):\d+\]                                 # [mxfp4.py:352]
    | (?:srv|cmn|slot|common|main):?(?=\ +[a-z_]+:)                  # the module of llama-server
    )\s*""",
    re.VERBOSE,
)


def find_message(line: str) -> str:
    """Returns the line from where its message begins."""
    text = COLOUR.sub("", line).strip()
    at = 0
    while (match := PREFIX.match(text, at)) is not None:
        at = match.end()
    return text[at:]
