"""Typed access to the objects of a config.json, with errors that name the field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from firesteel.errors import UserError


class SpecError(UserError):
    """Raised for a config.json that does not describe a gpt-oss model firesteel can run."""


class Fields:
    """One JSON object; errors put `prefix` before the names of its fields."""

    def __init__(self, content: Mapping[str, Any], prefix: str) -> None:
        self.content, self.prefix = content, prefix

    def reject_unknown(self, known: set[str]) -> None:
        for name in self.content:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
                raise SpecError(
                    f"unknown field {self.prefix}{name}, which may change the network (nearest known: {nearest})"
                )

    def number(self, name: str) -> float:
        value = self.content.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise SpecError(f"{self.prefix}{name} must be a positive number, not {value!r}")
        return float(value)

    def integer(self, name: str) -> int:
        value = self.number(name)
        if not value.is_integer():
            raise SpecError(f"{self.prefix}{name} must be a whole number, not {value!r}")
        return int(value)
