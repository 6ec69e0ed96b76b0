"""The OpenAPI document, made of the paths and their types; knows no endpoint's inside."""

from __future__ import annotations

import http
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from firesteel.server.http.route import Path
from firesteel.server.openai.answers import ErrorAnswer
from firesteel.server.openai.requests import TOKEN
from firesteel.version import find_version

REFERENCE = "#/components/schemas/{name}"
# Of each event; `data` is JSON, or [DONE] at the end of OpenAI's older streams.
EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
NAMED = re.compile(r"{(\w+)(?::\w+)?}")  # a parameter in a path


def build_document(paths: Sequence[Path], model_names: Sequence[str], vocab_size: int) -> dict[str, Any]:
    """As OpenAPI 3.1. `model_names` are those that a request may name."""
    types: set[type] = {ErrorAnswer}
    types |= {one.takes for one in paths if one.takes is not None}
    types |= {one.gives for one in paths if not isinstance(one.gives, str)}
    ordered = sorted(types, key=lambda kind: kind.__name__)
    found, components = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    schemas = dict(zip(ordered, found, strict=True))
    for kind in ordered:
        name_models(components[kind.__name__], model_names)
    bound_tokens(components, vocab_size)
    documented: dict[str, Any] = {}
    for one in paths:
        documented.setdefault(NAMED.sub(r"{\1}", one.path), {})[one.method.lower()] = describe(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "firesteel", "version": find_version()},
        "paths": documented,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def describe(one: Path, schemas: Mapping[type, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"summary": one.says, "responses": describe_answers(one, schemas)}
    if one.takes is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas[one.takes]}}}
    if names := NAMED.findall(one.path):
        kind = {"type": "string", "minLength": 1} | ({"enum": list(one.names)} if one.names else {})
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": kind} for name in names]
    if not one.is_open:
        made["security"] = [{}, {"key": []}]
    return made


def describe_answers(one: Path, schemas: Mapping[type, Any]) -> dict[str, Any]:
    if isinstance(one.gives, str):
        content: dict[str, Any] = {one.gives: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": schemas[one.gives]}}
    if one.streams:
        content["text/event-stream"] = {"schema": EVENT}
    answers = {"200": {"description": "OK", "content": content}}
    if one.unready is not None:
        answers[str(one.unready)] = {"description": "No engine is ready", "content": content}
    failed = {"application/json": {"schema": schemas[ErrorAnswer]}}
    for status in one.errors:
        answers[str(status)] = {"description": http.HTTPStatus(status).phrase, "content": failed}
    return answers


def name_models(schema: dict[str, Any], names: Sequence[str]) -> None:
    """A request's `model` is one of those served, or is left out."""
    field = schema.get("properties", {}).get("model")
    if field is not None and "default" in field:
        schema["properties"]["model"] = {"enum": [*names, None], "default": None}


def bound_tokens(schema: Any, vocab_size: int) -> None:
    """Everywhere in a schema: a token id is one of the model's."""
    if isinstance(schema, dict):
        if schema.get("title") == TOKEN:
            schema["maximum"] = vocab_size - 1
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            bound_tokens(inner, vocab_size)
