"""Checks the keywords of a JSON schema: the types of their values, how many there are, how deep references lead.

The compiler of grammars recurses along `$ref` too, and compares patterns and alternatives with each other. These
limits are cheap to check; what passes them is compiled on trial in a process that can be killed (trial.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

MOST_HOPS = 512  # schemas within schemas, references included; the compiler needs about 5 KB of stack for each
MOST_PATTERN = 4096  # characters
# Entries that these keywords may have in one place. For most, work grows with the square of their number.
MOST_ENTRIES = {
    "properties": 5000,
    "enum": 20_000,
    "patternProperties": 64,
    "anyOf": 2000,
    "oneOf": 2000,
    "allOf": 2000,
    "prefixItems": 2000,
}
OF_SCHEMAS = ("properties", "patternProperties", "dependentSchemas")  # objects
IN_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
SINGLE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)
DEFINITIONS = ("$defs", "definitions")
NUMBER, TEXT, LIST, OBJECT = (int, float), (str,), (list, tuple), (Mapping,)
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (NUMBER, "a number")),
    **dict.fromkeys(("minProperties", "maxProperties"), (NUMBER, "a number")),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (NUMBER, "a number")),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), ((*NUMBER, bool), "a number or a boolean")),
    **dict.fromkeys(("pattern", "format", "$ref"), (TEXT, "a string")),
    **dict.fromkeys(("properties", "patternProperties"), (OBJECT, "an object")),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems", "enum", "required"), (LIST, "an array")),
    "type": ((*TEXT, *LIST), "a string or an array"),
    "items": ((*OBJECT, *LIST, bool), "an object, an array or a boolean"),
    "additionalProperties": ((*OBJECT, bool), "an object or a boolean"),
}


def find_misuse(schema: Mapping[str, Any]) -> str | None:
    """Returns the first keyword with a value of the wrong type or with too many entries, or None."""
    left: list[Any] = [schema]
    while left:
        inner = left.pop()
        if not isinstance(inner, Mapping):
            continue
        if fault := _find_wrong_type(inner) or _find_many(inner) or _find_long_pattern(inner):
            return fault
        left += _inner(inner)
        left += [
            value for key in DEFINITIONS if isinstance(inner.get(key), Mapping) for value in inner[key].values()
        ]
    if _is_deep(schema):
        return f"its references lead more than {MOST_HOPS} schemas deep"
    return None


def _find_wrong_type(schema: Mapping[str, Any]) -> str | None:
    for keyword in KINDS.keys() & schema.keys():
        kinds, words = KINDS[keyword]
        value = schema[keyword]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            return f"{keyword} must be {words}, not {_describe(value)}"
    return None


def _describe(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _find_many(schema: Mapping[str, Any]) -> str | None:
    for keyword in MOST_ENTRIES.keys() & schema.keys():
        if len(schema[keyword]) > MOST_ENTRIES[keyword]:
            return f"{keyword} has more than {MOST_ENTRIES[keyword]} entries"
    return None


def _find_long_pattern(schema: Mapping[str, Any]) -> str | None:
    patterns = [*schema.get("patternProperties", ()), schema.get("pattern", "")]
    if any(len(pattern) > MOST_PATTERN for pattern in patterns):
        return f"it has a pattern of more than {MOST_PATTERN} characters"
    return None


def _inner(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the schemas directly within a schema, without its definitions."""
    for key in OF_SCHEMAS:
        if isinstance(schema.get(key), Mapping):
            yield from schema[key].values()
    for key in IN_LISTS:
        if isinstance(schema.get(key), list | tuple):
            yield from schema[key]
    for key in SINGLE:
        if isinstance(schema.get(key), Mapping):
            yield schema[key]


def _is_deep(root: Mapping[str, Any]) -> bool:
    """Returns whether a walk along references, which visits every schema once, goes more than MOST_HOPS deep."""
    seen: set[int] = set()
    left: list[tuple[Any, int]] = [(root, 1)]
    while left:
        schema, depth = left.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        if depth > MOST_HOPS:
            return True
        seen.add(id(schema))
        following = [*_inner(schema), _resolve(root, schema.get("$ref"))]
        left += [(inner, depth + 1) for inner in reversed(following)]
    return False


def _resolve(root: Mapping[str, Any], reference: Any) -> Any:
    """Returns what a reference within the schema names, or None; the compiler refuses all others."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping):
            place = place.get(name)
        elif isinstance(place, list | tuple) and name.isdecimal() and int(name[:9]) < len(place):
            place = place[int(name[:9])]
        else:
            return None
    return place
