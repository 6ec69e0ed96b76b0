"""A request's constraint: one of them, under each of its names, with its options."""

import msgspec
import pytest

from firesteel.chat.grammar import BLANKS
from firesteel.server.generate.constraint import close_objects, find_form, find_text_form
from firesteel.server.http.body import parse
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import CompletionRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
VALUES = {"json": SCHEMA, "regex": "a+", "choice": ["x", "y"], "grammar": 'start: "a"'}


def ask(**fields):
    return parse(msgspec.json.encode({"prompt": "x", **fields}), CompletionRequest)


@pytest.mark.parametrize("kind", VALUES)
def test_each_kind_has_two_names(kind):
    new = find_form(ask(structured_outputs={kind: VALUES[kind]}))
    old = find_form(ask(**{f"guided_{kind}": VALUES[kind]}))
    assert (new.kind, new.value, new.name) == (kind, VALUES[kind], f"structured_outputs.{kind}")
    assert (old.kind, old.value, old.name) == (kind, VALUES[kind], f"guided_{kind}")


def test_options_of_json():
    form = find_form(ask(structured_outputs={"json": "{}", "disable_any_whitespace": True}))
    assert form.blanks == "" and not form.is_closed
    form = find_form(ask(structured_outputs={"json_object": True, "disable_additional_properties": True}))
    assert form.blanks == BLANKS and form.is_closed
    assert find_form(ask(guided_json={}, guided_whitespace_pattern=" ")).blanks == " "


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
            "structured_outputs.whitespace_pattern",
        ),
    ],
)
def test_more_or_less_than_one_constraint_is_refused(fields, param):
    with pytest.raises(ApiError) as raised:
        find_form(ask(**fields))
    assert raised.value.status == 400 and raised.value.param == param


def test_text_format_is_no_constraint():
    asked = ask(response_format={"type": "text"}, guided_regex="a")
    assert find_form(asked).name == find_text_form(asked).name == "guided_regex"
    assert find_form(ask()) is None and find_text_form(ask()) is None


def test_response_format_constrains_a_text():
    form = find_text_form(ask(response_format={"type": "json_object"}))
    assert (form.kind, form.name) == ("json_object", "response_format")
    strict = {"name": "n", "schema": SCHEMA, "strict": True}
    form = find_text_form(ask(response_format={"type": "json_schema", "json_schema": strict}))
    assert form.value == SCHEMA and form.is_strict


def test_unknown_part_of_a_constraint_is_refused():
    with pytest.raises(ApiError, match="regexp"):
        ask(structured_outputs={"regexp": "a"})
    with pytest.raises(ApiError, match="structural_tag"):
        ask(structured_outputs={"structural_tag": "{}"})


def test_closed_objects_name_all_their_properties():
    schema = {
        "properties": {"properties": {"type": "string"}, "a": {"properties": {}, "additionalProperties": True}},
        "$defs": {"b": {"type": "object", "properties": {"c": {"const": {"properties": {}}}}}},
        "anyOf": [{"properties": {}}],
    }
    closed = close_objects(schema)
    assert closed["additionalProperties"] is False and closed["anyOf"][0]["additionalProperties"] is False
    assert closed["properties"] == schema["properties"], "a property of this name, and a schema that says otherwise"
    assert closed["$defs"]["b"]["additionalProperties"] is False
    assert closed["$defs"]["b"]["properties"]["c"] == {"const": {"properties": {}}}
