"""Conversion between the lab's dataclasses and JSON, at the border of a file or an HTTP answer."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from firesteel.errors import UserError

T = TypeVar("T")


def from_json(kind: type[T], content: Any, what: str) -> T:
    """Builds a dataclass from parsed JSON. Unknown fields are ignored, missing ones take their defaults."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{what} cannot be read: {error}") from error


def to_json(value: Any) -> Any:
    """Returns a value with dataclasses, at any depth, as dictionaries."""
    return msgspec.to_builtins(value)
