"""Keywords of a schema with values of the wrong type, too many entries, or references that lead too deep."""

import pytest

from firesteel.chat.keywords import MOST_ENTRIES, MOST_HOPS, MOST_PATTERN, find_misuse

CHAINS = {
    "anyOf": lambda inner: {"anyOf": [inner, {"type": "null"}]},
    "allOf": lambda inner: {"allOf": [inner]},
    "oneOf": lambda inner: {"oneOf": [inner]},
    "properties": lambda inner: {"type": "object", "properties": {"a": inner}},
    "patternProperties": lambda inner: {"type": "object", "patternProperties": {"a": inner}},
    "additionalProperties": lambda inner: {"type": "object", "additionalProperties": inner},
    "items": lambda inner: {"type": "array", "items": inner},
    "prefixItems": lambda inner: {"type": "array", "prefixItems": [inner]},
    "$ref": lambda inner: inner,
}


def chain(link, count, definitions="$defs"):
    links = {f"d~{i}/": link({"$ref": f"#/{definitions}/d~0{i + 1}~1"}) for i in range(count)}
    return {definitions: {**links, f"d~{count}/": {"type": "string"}}, "$ref": f"#/{definitions}/d~00~1"}


@pytest.mark.parametrize("definitions", ["$defs", "definitions"])
@pytest.mark.parametrize("link", CHAINS.values(), ids=CHAINS)
def test_chains_of_references_are_limited(link, definitions):
    """A chain of 1,100 references ended the server with a segmentation fault."""
    assert "schemas deep" in (find_misuse(chain(link, 1100, definitions)) or "")
    assert find_misuse(chain(link, 200, definitions)) is None


def test_limit_of_references_is_exact():
    assert find_misuse(chain(CHAINS["$ref"], MOST_HOPS - 2)) is None
    assert find_misuse(chain(CHAINS["$ref"], MOST_HOPS - 1)) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/properties/a", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"$ref": "#/anyOf/1", "anyOf": [{"type": "null"}, {"type": "string"}]},
        {"$ref": "#/anyOf/7", "anyOf": [{"type": "null"}]},
        {"$ref": "#/nowhere/a/b"},
        {"$ref": "https://example.org/x"},
        {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{j}"} for j in range(40)]} for i in range(40)}},
    ],
)
def test_circular_and_unknown_references_end_the_walk(schema):
    assert find_misuse(schema) is None


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("maxLength", "é" * 60),
        ("minItems", None),
        ("maxProperties", True),
        ("minimum", "1"),
        ("exclusiveMaximum", []),
        ("multipleOf", {}),
        ("pattern", 3),
        ("format", None),
        ("$ref", 3),
        ("properties", []),
        ("patternProperties", "é" * 60),
        ("anyOf", {}),
        ("oneOf", "x"),
        ("allOf", None),
        ("enum", {}),
        ("required", "é" * 60),
        ("type", 3),
        ("items", "x"),
        ("additionalProperties", []),
    ],
)
@pytest.mark.parametrize("place", [lambda inner: inner, lambda inner: {"$defs": {"a": {"items": [inner]}}}])
def test_value_of_the_wrong_type_is_named(keyword, value, place):
    """llguidance panicked on `maxLength` with a text of 60 times é."""
    assert find_misuse(place({keyword: value})).startswith(f"{keyword} must be a")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"maxLength": {"type": "string"}, "enum": {"type": "string"}, "items": {}}},
        {"default": {"maxLength": "x"}, "examples": [{"pattern": 3}], "const": {"$ref": 3}, "enum": [{"type": 3}]},
        {"exclusiveMinimum": True, "additionalProperties": False, "items": True, "type": ["string", "null"]},
        {"minLength": 3.0, "$defs": None, "title": 3},
    ],
)
def test_names_and_data_are_not_keywords(schema):
    assert find_misuse(schema) is None


@pytest.mark.parametrize("keyword", MOST_ENTRIES)
def test_entries_of_a_keyword_are_limited(keyword):
    def entries(count):
        names = [f"a{i}" for i in range(count)]
        return {name: {} for name in names} if keyword in ("properties", "patternProperties") else [{}] * count

    most = MOST_ENTRIES[keyword]
    assert find_misuse({"items": {keyword: entries(most)}, "$defs": {"a": {keyword: entries(most)}}}) is None
    for place in ({"items": {keyword: entries(most + 1)}}, {"$defs": {"a": {keyword: entries(most + 1)}}}):
        assert find_misuse(place) == f"{keyword} has more than {most} entries"


@pytest.mark.parametrize("make", [lambda text: {"pattern": text}, lambda text: {"patternProperties": {text: {}}}])
def test_patterns_are_limited(make):
    assert find_misuse(make("a" * MOST_PATTERN)) is None
    assert "pattern" in find_misuse({"items": make("a" * (MOST_PATTERN + 1))})
