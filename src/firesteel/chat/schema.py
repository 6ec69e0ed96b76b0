"""Limits on JSON schemas that clients send: depth, size of numbers, cost of `multipleOf`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

MOST_DEPTH = 128  # nested objects and lists, the limit of serde_json
MOST_STEPS = 20_000  # grammar states for `multipleOf`; this number takes half a second to compile


def find_flaw(schema: Any) -> str | None:
    """Returns why a schema cannot be parsed, or None."""
    for value, depth in _walk(schema):
        if depth > MOST_DEPTH:
            return f"it is nested more than {MOST_DEPTH} levels deep"
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            return "it has a whole number of more than 308 digits"
    return None


def find_cost(schema: Any) -> str | None:
    """Returns why a schema would take too long to compile, or None: `multipleOf` needs a state per step."""
    steps = [step for value, _ in _walk(schema) if isinstance(value, Mapping) and (step := _step(value))]
    if not steps:
        return None
    numerator = math.lcm(*(step.numerator for step in steps))
    common = Fraction(numerator, math.gcd(*(step.denominator for step in steps)))
    if max(sum(map(_count, steps)), _count(common)) > MOST_STEPS:
        return f"its values of multipleOf need more than {MOST_STEPS} steps: choose rounder values"
    return None


def _walk(schema: Any) -> Iterator[tuple[Any, int]]:
    """Yields every value in a schema with its depth."""
    left = [(schema, 1)]
    while left:
        value, depth = left.pop()
        yield value, depth
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        left += [(child, depth + 1) for child in inner]


def _step(schema: Mapping[str, Any]) -> Fraction | None:
    value = schema.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return None
    return Fraction(repr(value))


def _count(step: Fraction) -> int:
    """Returns the states that a step needs; powers of ten are just digits and need none."""
    count: int = step.numerator * 10 ** step.denominator.bit_length() // step.denominator
    while count and count % 10 == 0:
        count //= 10
    return count
