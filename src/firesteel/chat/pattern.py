"""Patterns of JSON schemas that grammars cannot enforce, because their regular expressions have no look-around."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from firesteel.chat.keywords import DEFINITIONS, OF_SCHEMAS

log = logging.getLogger(__name__)
# An escaped character, or the beginning of look-around, of an atomic group or of a comment.
_TOKEN = re.compile(r"\\.|\(\?(?:<?[=!]|[>#])", re.DOTALL)
_UNSUPPORTED = re.compile(r"\(.*|\\[bBck1-9]")  # word boundaries, control characters, backreferences
_VALUES = ("enum", "const", "default", "examples")  # not schemas


def is_enforceable(pattern: str) -> bool:
    return not any(map(_UNSUPPORTED.fullmatch, _TOKEN.findall(pattern)))


def drop_patterns(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns the schema of `name` without the patterns that cannot be enforced; logs how many there were."""
    dropped: list[str] = []
    kept: Mapping[str, Any] = _strip(schema, dropped)
    if dropped:
        log.warning(
            "patterns that cannot be enforced were dropped",
            extra={"schema": name[:80], "count": len(dropped), "first": dropped[0][:200]},
        )
    return kept


def _strip(value: Any, dropped: list[str]) -> Any:
    if isinstance(value, list | tuple):
        return [_strip(inner, dropped) for inner in value]
    if not isinstance(value, Mapping):
        return value
    kept: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "pattern" and isinstance(inner, str) and not is_enforceable(inner):
            dropped.append(inner)
        elif key in (*OF_SCHEMAS, *DEFINITIONS) and isinstance(inner, Mapping):
            kept[key] = {name: _strip(schema, dropped) for name, schema in inner.items()}
        else:
            kept[key] = inner if key in _VALUES else _strip(inner, dropped)
    return kept
