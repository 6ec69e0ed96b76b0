"""Patterns that grammars cannot enforce are found and dropped; all others stay."""

import pytest

from firesteel.chat.grammar import grammar_for
from firesteel.chat.pattern import drop_patterns, is_enforceable
from firesteel.chat.tools import Tool
from firesteel.errors import RequestError

# As zod's z.email() writes it.
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


@pytest.mark.parametrize("pattern", [EMAIL, r"(?=a)b", r"(?<=a)b", r"(?<!a)b", r"\bword\b", r"(a)\1", r"(?>a)b"])
def test_unsupported_patterns_are_found_and_fail_to_compile(pattern):
    assert not is_enforceable(pattern)
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}, "required": ["x"]}
    tool = Tool(name="look", description="", parameters=schema, strict=True)
    with pytest.raises(RequestError, match="cannot be enforced"):
        grammar_for(tools=[tool])


@pytest.mark.parametrize("pattern", [r"^[a-z]+$", r"\\b", r"(?:a|b)", r"(?<name>a)", r"\d{4}", r"a\.b", ""])
def test_other_patterns_are_enforceable(pattern):
    assert is_enforceable(pattern)


def test_only_the_pattern_is_dropped_and_only_from_schemas():
    mail = {"type": "string", "format": "email", "pattern": EMAIL}
    schema = {
        "properties": {"mail": mail, "pattern": {"type": "string", "pattern": "^a$"}, "enum": mail},
        "items": [mail],
        "$defs": {"m": mail},
        "default": {"pattern": EMAIL},
        "anyOf": [mail, {"const": {"pattern": EMAIL}}],
    }
    left = {"type": "string", "format": "email"}
    assert drop_patterns(schema, "tool 'x'") == {
        "properties": {"mail": left, "pattern": {"type": "string", "pattern": "^a$"}, "enum": left},
        "items": [left],
        "$defs": {"m": left},
        "default": {"pattern": EMAIL},
        "anyOf": [left, {"const": {"pattern": EMAIL}}],
    }
    assert schema["properties"]["mail"] is mail and mail["pattern"] == EMAIL


def test_dropping_is_logged_once_per_tool(caplog):
    schema = {"properties": {name: {"type": "string", "pattern": EMAIL} for name in "ab"}}
    drop_patterns(schema, "tool 'x'")
    [line] = caplog.records
    assert (line.schema, line.count, line.first) == ("tool 'x'", 2, EMAIL)
    drop_patterns({"pattern": "^a$"}, "tool 'y'")
    assert len(caplog.records) == 1


def test_required_call_of_a_tool_that_is_not_strict_ignores_the_pattern():
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": EMAIL}}, "required": ["x"]}
    tool = Tool(name="look", description="", parameters=schema)
    assert "pattern" not in grammar_for(tools=[tool], tool_choice="required").replace("whitespace_pattern", "")
