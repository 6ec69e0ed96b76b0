"""Schemas that would recurse too deep, overflow or take minutes are refused before compilation."""

import random

import pytest

from firesteel.chat.grammar import grammar_for
from firesteel.chat.harmony import ResponseFormat
from firesteel.chat.schema import (
    MOST_CHARACTERS,
    MOST_DEPTH,
    MOST_STEPS,
    MOST_VALUES,
    SchemaLimits,
    find_cost,
    find_flaw,
)
from firesteel.errors import RequestError


def nested(depth):
    schema = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("depth", "is_flawed"), [(1, False), (MOST_DEPTH, False), (MOST_DEPTH + 1, True), (10**5, True)]
)
def test_depth_is_limited(depth, is_flawed):
    assert ("levels deep" in (find_flaw(nested(depth)) or "")) == is_flawed


def test_lists_count_as_levels():
    value = []
    for _ in range(MOST_DEPTH):
        value = [value]
    assert "levels deep" in find_flaw({"default": value})


@pytest.mark.parametrize("number", [10**309, -(10**400)])
def test_number_beyond_float_range_is_refused(number):
    assert "308 digits" in find_flaw({"properties": {"a": {"default": [number]}}})
    assert find_flaw({"default": [10**300, True, 1.5, None, "x"]}) is None


@pytest.mark.parametrize(
    "step",
    [7, 9999, 100_000, 0.01, 0.0625, 5e-324, 1e308, 1e-7, 12.345, 2500, -99991, 0, True, "x", {"type": "object"}],
)
def test_usual_steps_cost_little(step):
    assert find_cost({"properties": {"a": {"multipleOf": step}}}) is None


@pytest.mark.parametrize("step", [MOST_STEPS + 1, 9_999_991, 1.2345678, 10**18 + 1])
def test_long_step_is_refused(step):
    assert "multipleOf" in find_cost({"multipleOf": step})


def test_many_steps_and_their_common_multiple_are_refused():
    assert find_cost({"allOf": [{"multipleOf": 997}, {"multipleOf": 89}]}) is not None
    assert find_cost({"items": [{"multipleOf": 90 + step} for step in range(1, 300)]}) is not None
    assert find_cost({"allOf": [{"multipleOf": 0.01}, {"multipleOf": 1500}, {"multipleOf": 60}]}) is None


def test_multiples_of_large_numbers_are_not_computed():
    """The least common multiple of 1,500 numbers of 1,000 bits took 16 s, on the server's event loop."""
    rng, seen = random.Random(0), []

    class Watched(int):
        def __repr__(self):
            seen.append(self)
            return super().__repr__()

    steps = [{"multipleOf": Watched(rng.getrandbits(1000) | 1)} for _ in range(1500)]
    assert "multipleOf" in find_cost({"anyOf": steps})
    assert len(seen) == 1


def test_size_is_limited_over_all_schemas_of_a_request():
    half = {"enum": [0] * (MOST_VALUES // 2)}
    limits = SchemaLimits()
    assert limits.find_flaw(half) is None
    assert "values" in limits.find_flaw(half)
    limits = SchemaLimits()
    assert limits.find_flaw({"a" * (MOST_CHARACTERS // 2): "b"}) is None
    assert "characters" in limits.find_flaw({"a": "b" * (MOST_CHARACTERS // 2)})


def test_grammar_error_names_the_cause():
    """Such a schema blocked the engine for minutes."""
    for schema, word in (({"multipleOf": 9_999_991}, "multipleOf"), (nested(200), "levels deep")):
        with pytest.raises(RequestError, match=f"response_format: the JSON schema cannot be enforced: .*{word}"):
            grammar_for(response_format=ResponseFormat(name="x", schema=schema))
