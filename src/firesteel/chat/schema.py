"""What no JSON schema may hold here: depth, numbers and steps without bound. Knows no grammar and no tokens."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

MOST_DEPTH = 128  # objects and lists in each other, as serde_json has it
MOST_STEPS = 20_000  # numbers between two multiples that a grammar counts through; half a second to compile


def find_flaw(schema: Any) -> str | None:
    """Why a schema cannot even be read through, if so."""
    for value, depth in _walk(schema):
        if depth > MOST_DEPTH:
            return f"it is more than {MOST_DEPTH} levels deep"
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            return "it holds a whole number of more than 308 digits"
    return None


def find_cost(schema: Any) -> str | None:
    """Why a schema would take too long to compile, if so: the states of `multipleOf` are as many as its steps."""
    found = [step for value, _ in _walk(schema) if isinstance(value, Mapping) and (step := _step(value))]
    if not found:
        return None
    together = Fraction(math.lcm(*(one.numerator for one in found)), math.gcd(*(one.denominator for one in found)))
    if max(sum(map(_count, found)), _count(together)) > MOST_STEPS:
        return f"its values of multipleOf need more than {MOST_STEPS} steps: choose rounder ones"
    return None


def _walk(schema: Any) -> Iterator[tuple[Any, int]]:
    """Every value in it and how deep it lies."""
    left = [(schema, 1)]
    while left:
        value, depth = left.pop()
        yield value, depth
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        left += [(one, depth + 1) for one in inner]


def _step(schema: Mapping[str, Any]) -> Fraction | None:
    value = schema.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return None
    return Fraction(repr(value))


def _count(step: Fraction) -> int:
    """Powers of ten are digits and cost nothing."""
    count: int = step.numerator * 10 ** step.denominator.bit_length() // step.denominator
    while count and count % 10 == 0:
        count //= 10
    return count
