"""The one constraint of a request on its answer: `structured_outputs`, or one of its older names `guided_*`.

form = find_form(asked)                       # None without a constraint; ApiError for two of them
constraint = await build_constraint(form, trials)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from firesteel.chat.constraint import constrain_choice, constrain_grammar, constrain_regex, is_gbnf
from firesteel.chat.grammar import BLANKS, Constraint, SchemaError, constrain_json
from firesteel.chat.schema import find_flaw
from firesteel.errors import RequestError
from firesteel.server.grammar.pool import GrammarTrials, refuse
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.limits import MAX_GRAMMAR_CHARACTERS
from firesteel.server.openai.requests import (
    GenerationRequest,
    JsonFormat,
    JsonSchemaFormat,
    TextFormat,
)
from firesteel.server.openai.structured import StructuredOutputs

Kind = Literal["json", "json_object", "regex", "choice", "grammar"]
KINDS: tuple[Kind, ...] = ("json", "json_object", "regex", "choice", "grammar")
GUIDED: tuple[Kind, ...] = ("json", "regex", "choice", "grammar")
OPTIONS = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")  # of JSON
SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
VALUES = ("const", "enum", "default", "examples")  # keywords that hold no schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A constraint as the request states it."""

    name: str  # its field
    kind: Kind
    value: Any
    is_strict: bool = True  # whether a schema that cannot be enforced to the letter is an error
    blanks: str = BLANKS
    is_closed: bool = False  # whether objects have only the properties that their schemas name


def find_form(asked: GenerationRequest) -> Form | None:
    """Returns the constraint of `structured_outputs` or `guided_*`. Two constraints are refused."""
    forms = [] if asked.structured_outputs is None else [_read(asked.structured_outputs)]
    blanks = asked.guided_whitespace_pattern
    forms += [
        Form(name=f"guided_{kind}", kind=kind, value=value, blanks=blanks or BLANKS)
        for kind in GUIDED
        if (value := getattr(asked, f"guided_{kind}")) is not None
    ]
    if blanks is not None and asked.guided_json is None:
        raise ApiError(400, "guided_whitespace_pattern needs guided_json", param="guided_whitespace_pattern")
    names = [form.name for form in forms]
    if asked.response_format is not None and not isinstance(asked.response_format, TextFormat):
        names.append("response_format")
    if len(names) > 1:
        message = f"an answer follows one constraint; given: {', '.join(names)}"
        raise ApiError(400, message, param=names[0].partition(".")[0], code="invalid_value")
    return forms[0] if forms else None


def find_text_form(asked: GenerationRequest) -> Form | None:
    """Returns the constraint of a plain text, for which `response_format` is one too."""
    form, wanted, name = find_form(asked), asked.response_format, "response_format"
    match wanted:
        case JsonFormat():
            return Form(name=name, kind="json_object", value=True, is_strict=False)
        case JsonSchemaFormat(json_schema=schema):
            return Form(name=name, kind="json", value=schema.schema or {}, is_strict=bool(schema.strict))
    return form


def _read(wanted: StructuredOutputs) -> Form:
    field = "structured_outputs"
    given = [kind for kind in KINDS if getattr(wanted, kind) not in (None, False)]
    if len(given) != 1:
        message = f"{field} needs exactly one of {', '.join(KINDS)}; given: {', '.join(given) or 'none'}"
        raise ApiError(400, message, param=field, code="invalid_value")
    [kind] = given
    options = [option for option in OPTIONS if getattr(wanted, option)]
    if options and not kind.startswith("json"):
        raise ApiError(400, f"{field}.{options[0]} needs json or json_object", param=f"{field}.{options[0]}")
    if wanted.whitespace_pattern and wanted.disable_any_whitespace:
        message = f"{field}: whitespace_pattern and disable_any_whitespace exclude each other"
        raise ApiError(400, message, param=f"{field}.whitespace_pattern")
    return Form(
        name=f"{field}.{kind}",
        kind=kind,
        value=getattr(wanted, kind),
        blanks="" if wanted.disable_any_whitespace else wanted.whitespace_pattern or BLANKS,
        is_closed=bool(wanted.disable_additional_properties),
    )


async def build_constraint(form: Form, trials: GrammarTrials) -> Constraint:
    """Builds the constraint, which is not compiled yet. Raises ApiError if it cannot be read."""
    match form.kind:
        case "regex":
            return constrain_regex(form.value, name=form.name)
        case "choice":
            if (count := sum(map(len, form.value))) > MAX_GRAMMAR_CHARACTERS:
                message = f"{form.name}: the texts have {count} characters; at most {MAX_GRAMMAR_CHARACTERS}"
                raise ApiError(400, message, param=form.name, code="invalid_value")
            return constrain_choice(form.value, name=form.name)
        case "grammar":
            text = await trials.convert(form.name, form.value) if is_gbnf(form.value) else form.value
            return constrain_grammar(text, name=form.name)
    try:
        return await asyncio.to_thread(_constrain_json, form)
    except SchemaError as error:
        raise refuse(error) from None
    except RequestError as error:
        raise ApiError(400, str(error), param=form.name, code="invalid_value") from None


def _constrain_json(form: Form) -> Constraint:
    schema = {"type": "object"} if form.kind == "json_object" else _parse(form)
    if flaw := find_flaw(schema):
        raise SchemaError(form.name, flaw)
    if form.is_closed:
        schema = close_objects(schema)
    return constrain_json(schema, name=form.name, strict=form.is_strict, blanks=form.blanks)


def _parse(form: Form) -> Any:
    """Returns the schema, which may be given as a text."""
    if not isinstance(form.value, str):
        return form.value
    try:
        return msgspec.json.decode(form.value)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RequestError(f"{form.name}: the text is not a JSON schema: {error}") from None


def close_objects(schema: Any) -> Any:
    """Returns the schema with objects that allow no properties beside those that they name."""
    if isinstance(schema, list):
        return [close_objects(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    closed: dict[str, Any] = {}
    for name, value in schema.items():
        if name in SCHEMAS_BY_NAME and isinstance(value, dict):
            closed[name] = {key: close_objects(inner) for key, inner in value.items()}
        else:
            closed[name] = value if name in VALUES else close_objects(value)
    if schema.keys() & {"properties", "patternProperties"}:
        closed.setdefault("additionalProperties", False)
    return closed
