"""Limits on JSON schemas that clients send, checked before anything costly: size, depth, cost of `multipleOf`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

MOST_DEPTH = 128  # nested objects and lists, the limit of serde_json
MOST_VALUES = 50_000  # objects, lists, texts, numbers; a schema of OpenAI's 5,000 properties has about 20,000
MOST_CHARACTERS = 1 << 20  # of names and texts
MOST_STEPS = 20_000  # grammar states for `multipleOf`; this number takes half a second to compile
TOO_LARGE_NUMBER = "it has a whole number of more than 308 digits"


class SchemaLimits:
    """The rest of the size limits that the schemas of one request share."""

    def __init__(self) -> None:
        self._values = MOST_VALUES
        self._characters = MOST_CHARACTERS

    def find_flaw(self, schema: Any) -> str | None:
        """Returns why a schema cannot be read, or None. The check stops at the first limit."""
        depth, level = 0, [schema]
        while level:
            depth += 1
            if depth > MOST_DEPTH:
                return f"it is nested more than {MOST_DEPTH} levels deep"
            self._values -= len(level)
            following: list[Any] = []
            for value in level:
                if isinstance(value, str):
                    self._characters -= len(value)
                elif isinstance(value, Mapping):
                    self._characters -= sum(len(name) for name in value if isinstance(name, str))
                    following += value.values()
                elif isinstance(value, list | tuple):
                    following += value
                elif isinstance(value, int) and abs(value) > sys.float_info.max:
                    return TOO_LARGE_NUMBER
                if len(following) > self._values:
                    return f"it has, with the request's other schemas, more than {MOST_VALUES} values"
            if self._characters < 0:
                return f"it has, with the request's other schemas, more than {MOST_CHARACTERS} characters"
            level = following
        return None


def find_flaw(schema: Any) -> str | None:
    """Returns why a schema on its own cannot be read, or None."""
    return SchemaLimits().find_flaw(schema)


def find_cost(schema: Any) -> str | None:
    """Returns why a schema would take too long to compile, or None: `multipleOf` needs a state per step."""
    too_many = f"its values of multipleOf need more than {MOST_STEPS} steps: choose rounder values"
    steps: list[Fraction] = []
    count = 0
    for value in _walk(schema):
        step = _step(value) if isinstance(value, Mapping) else None
        if step is not None:
            steps.append(step)
            count += _count(step)
            if count > MOST_STEPS:
                return too_many
    if not steps:
        return None
    # Each step needs few states by now, so the common multiple of the distinct ones has a few hundred digits.
    distinct = set(steps)
    numerator = math.lcm(*(step.numerator for step in distinct))
    common = Fraction(numerator, math.gcd(*(step.denominator for step in distinct)))
    return too_many if _count(common) > MOST_STEPS else None


def _walk(schema: Any) -> Iterator[Any]:
    """Yields every value in a schema."""
    left = [schema]
    while left:
        value = left.pop()
        yield value
        left += value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()


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
