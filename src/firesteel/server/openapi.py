"""The OpenAPI document, built from the routes and their types."""

from __future__ import annotations

import http
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from firesteel.server.http.route import ApiRoute
from firesteel.server.openai.fields import UnreadField, find_unread
from firesteel.server.openai.requests import TOKEN
from firesteel.version import find_version

REFERENCE = "#/components/schemas/{name}"
# Schema of an event; `data` is JSON, or [DONE] at the end of OpenAI's older streams.
EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
NAMED = re.compile(r"{(\w+)(?::\w+)?}")  # a parameter in a path


def build_document(routes: Sequence[ApiRoute], model_names: Sequence[str], vocab_size: int) -> dict[str, Any]:
    """Builds the document for OpenAPI 3.1. `model_names` are those that a request may name."""
    types: set[type] = {route.failure for route in routes}
    types |= {route.takes for route in routes if route.takes is not None}
    types |= {route.gives for route in routes if not isinstance(route.gives, str)}
    ordered = sorted(types, key=lambda kind: kind.__name__)
    schemas_of, components = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    schemas = dict(zip(ordered, schemas_of, strict=True))
    for kind in ordered:
        name_models(components[kind.__name__], model_names)
        add_unread(components[kind.__name__], find_unread(kind))
    relax_tags(components)
    bound_tokens(components, vocab_size)
    documented: dict[str, Any] = {}
    for route in routes:
        documented.setdefault(NAMED.sub(r"{\1}", route.path), {})[route.method.lower()] = describe(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "firesteel", "version": find_version()},
        "paths": documented,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "header_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def describe(route: ApiRoute, schemas: Mapping[type, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": route.says, "responses": describe_answers(route, schemas)}
    if route.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[route.takes]}},
        }
    if names := NAMED.findall(route.path):
        kind = {"type": "string", "minLength": 1} | ({"enum": list(route.names)} if route.names else {})
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": kind} for name in names]
    if not route.is_open:
        operation["security"] = [{}, {"key": []}, {"header_key": []}]
    return operation


def describe_answers(route: ApiRoute, schemas: Mapping[type, Any]) -> dict[str, Any]:
    if isinstance(route.gives, str):
        content: dict[str, Any] = {route.gives: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": schemas[route.gives]}}
    if route.streams:
        content["text/event-stream"] = {"schema": EVENT}
    answers = {"200": {"description": "OK", "content": content}}
    if route.unready is not None:
        answers[str(route.unready)] = {"description": "No engine is ready", "content": content}
    failed = {"application/json": {"schema": schemas[route.failure]}}
    for status in route.errors:
        answers[str(status)] = {"description": http.HTTPStatus(status).phrase, "content": failed}
    return answers


def name_models(schema: dict[str, Any], names: Sequence[str]) -> None:
    """Restricts a request's `model` to the served names or null."""
    field = schema.get("properties", {}).get("model")
    if field is not None and "default" in field:
        schema["properties"]["model"] = {"enum": [*names, None], "default": None}


def add_unread(schema: dict[str, Any], fields: Mapping[str, UnreadField]) -> None:
    """Adds the fields that are checked but not read, with the values that are accepted."""
    schema.get("properties", {}).update({name: field.schema for name, field in fields.items()})


def relax_tags(components: Mapping[str, Any]) -> None:
    """Makes a tag optional where it need not tell types apart: msgspec accepts such an object without it."""
    told_apart = {place.rpartition("/")[2] for mapping in _find_mappings(components) for place in mapping.values()}
    for name, schema in components.items():
        if name not in told_apart:
            required, fields = schema.get("required", []), schema.get("properties", {})
            required[:] = [field for field in required if len(fields[field].get("enum", ())) != 1]


def _find_mappings(schema: Any) -> Iterator[Mapping[str, str]]:
    """Yields the mappings of all discriminators in a schema."""
    if isinstance(schema, dict):
        if "discriminator" in schema:
            yield schema["discriminator"]["mapping"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from _find_mappings(inner)


def bound_tokens(schema: Any, vocab_size: int) -> None:
    """Bounds token ids by the vocabulary, everywhere in a schema."""
    if isinstance(schema, dict):
        if schema.get("title") == TOKEN:
            schema["maximum"] = vocab_size - 1
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            bound_tokens(inner, vocab_size)
