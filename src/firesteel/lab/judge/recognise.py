"""Recognises which engine wrote a log or launched the kernels of a trace, by the rules of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from firesteel.lab.path.engine_rules import RULES, EngineRules
from firesteel.lab.path.log_message import find_message

# The more special engine first: our plugin runs inside vLLM, whose lines are in the same log.
ENGINES = ("vllm+firesteel", "firesteel", "sglang", "llamacpp", "vllm")
LOG, KERNELS = "log", "kernels"


def recognise_engine(log: Sequence[str], kernels: Iterable[str]) -> tuple[str, str]:
    """Returns the engine and the line or kernel that shows it; empty if nothing does."""
    names = list(kernels)
    for engine in ENGINES:
        marks = EngineRules.load(RULES / f"{engine}.toml").recognised_by
        line = _find(marks, LOG, map(find_message, log)) or _find(marks, KERNELS, names)
        if line:
            return engine, line
    return "", ""


def _find(marks: Mapping[str, Sequence[str]], source: str, lines: Iterable[str]) -> str:
    """Returns the first line that matches: logs at the start of a message, kernels anywhere."""
    if not marks.get(source):
        return ""
    pattern = re.compile("|".join(f"(?:{text})" for text in marks[source]))
    matches = pattern.match if source == LOG else pattern.search
    return next((line for line in lines if matches(line)), "")
