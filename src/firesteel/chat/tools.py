"""Renders the functions that a model may call as TypeScript-like text.

gpt-oss was trained on this text, so it equals that of openai-harmony to the character, even where that is not
TypeScript: `anyOf` and `$ref` are `any`, only the first line of a property's description is commented,
enum members and top-level string defaults are quoted without escapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_MEMBER_INDENT = " " * 4
_VARIANT_INDENT = " " * 3
_SIMPLE_TYPES = {"number": "number", "integer": "number", "boolean": "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """The form of a tool's argument that is plain text, not JSON; enforced by grammar.py."""

    syntax: Literal["text", "lark", "regex"] = "text"  # text: any
    definition: str = ""  # in that syntax


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its only argument, an object."""

    name: str
    description: str
    parameters: dict[str, Any] | None = None
    strict: bool = False  # arguments must follow the schema; enforced by grammar.py
    text: TextRule | None = None  # the argument is a text of this form in place of an object


def render_namespace(tools: Sequence[Tool], namespace: str = "functions") -> str:
    """Returns the `namespace ... { ... }` text without its `## namespace` title."""
    parts = [f"namespace {namespace} {{\n"]
    parts += [_render_tool(tool) for tool in tools]
    parts.append(f"}} // namespace {namespace}")
    return "\n".join(parts)


def render_json(value: Any) -> str:
    """Returns compact JSON with the number format of serde_json, which wrote the model's training prompts."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_json_string(key)}:{render_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(render_json, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if -(2**63) <= value < 2**64 else _render_float(float(value))
    if isinstance(value, float):
        return _render_float(value)
    return _json_string(value)


def _json_string(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _render_float(value: float) -> str:
    """Renders with the fewest digits, in plain notation from 1e-5 to 1e16; Python's repr uses it from 1e-4."""
    text = repr(value)
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    if int(exponent) == -5:
        digits = mantissa.lstrip("-").replace(".", "")
        return f"{'-' if value < 0 else ''}0.0000{digits}"
    return f"{mantissa}e{int(exponent)}"


def _render_tool(tool: Tool) -> str:
    comment = "".join(f"// {line}\n" for line in _lines(tool.description))
    if tool.text is not None:
        rule = "".join(f"// {line}\n" for line in _lines(describe_text(tool.text)))
        return f"{comment}{rule}type {tool.name} = (_: string) => any;\n"
    argument = "" if tool.parameters is None else f"_: {_render_type(tool.parameters, '')}"
    return f"{comment}type {tool.name} = ({argument}) => any;\n"


def describe_text(rule: TextRule) -> str:
    """Returns the lines that tell the model how to write such an argument."""
    how = "The argument is plain text: write it as it is, neither quoted nor as JSON."
    if rule.syntax == "text":
        return how
    return f"{how} It must match this {rule.syntax} grammar:\n{rule.definition}"


def _lines(text: str) -> list[str]:
    """Splits into lines at \\n or \\r\\n only, without an empty line after the last break."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
        return [line.removesuffix("\r") for line in lines]
    return [line.removesuffix("\r") for line in lines[:-1]] + lines[-1:]


def _render_type(schema: Any, indent: str) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    variants = schema.get("oneOf")
    if isinstance(variants, list):
        return _render_nested_choice(variants, indent)
    kind = schema.get("type")
    if isinstance(kind, list):
        names = ["number" if name == "integer" else name for name in kind if isinstance(name, str)]
        return " | ".join(names) if names else "any"
    if not isinstance(kind, str):
        return "any"
    if kind == "object":
        return _render_object(schema, indent)
    if kind == "array":
        return f"{_render_type(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    if kind == "string":
        return " | ".join(f'"{member}"' for member in _strings(schema.get("enum"))) or "string"
    return _SIMPLE_TYPES.get(kind, "any")


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _render_object(schema: Mapping[str, Any], indent: str) -> str:
    required = _strings(schema.get("required"))
    properties = schema.get("properties")
    members = properties.items() if isinstance(properties, Mapping) else ()
    body = "".join(_render_member(name, member, name in required, indent) for name, member in members)
    return f"{_description(schema, indent)}{{\n{body}{indent}}}"


def _render_member(name: str, schema: Any, required: bool, indent: str) -> str:
    key = f"{indent}{name}{'' if required else '?'}:"
    if not isinstance(schema, Mapping):
        return f"{key} any,\n"
    if isinstance(schema.get("oneOf"), list):
        return _render_choice(key, schema, indent)
    kind = _render_nullable(schema, indent + _MEMBER_INDENT)
    title, examples = _title(schema, indent), _examples(schema, indent)
    if "oneOf" in schema:  # not a list, so not a choice, but openai-harmony drops its other comments all the same
        return f"{title}{examples}{key} {kind},\n"
    default = f" // default: {_render_default(schema)}" if "default" in schema else ""
    return f"{title}{_description(schema, indent)}{examples}{key} {kind},{default}\n"


def _render_choice(key: str, schema: Mapping[str, Any], indent: str) -> str:
    """Renders a `oneOf` member. If it has a description, that of its first variant and repeats are left out."""
    variants = schema["oneOf"]
    shared = _text(schema, "description")
    is_repeated = bool(variants) and shared == _text(variants[0], "description")
    comments = _title(schema, indent) + _examples(schema, indent)
    comments += "" if is_repeated else _description(schema, indent)
    comments += f"{indent}// default: {_render_default(schema)}\n" if "default" in schema else ""
    lines = [f"{comments}{key}"]
    for index, variant in enumerate(variants):
        own = _text(variant, "description")
        is_hidden = shared is not None and (index == 0 or own == shared)
        notes = [] if own is None or is_hidden else [own]
        if isinstance(variant, Mapping) and "default" in variant:
            notes.append(f"default: {_render_default(variant)}")
        lines.append(_render_variant(variant, indent, notes))
    return "\n".join([*lines, f"{indent},\n"])


def _render_nested_choice(variants: list[Any], indent: str) -> str:
    lines = [""]
    for variant in variants:
        own = _text(variant, "description")
        notes = [] if own is None else [own]
        if isinstance(variant, Mapping) and "default" in variant:
            notes.append(f"default: {_render_default(variant, is_nested=True)}")
        lines.append(_render_variant(variant, indent, notes))
    return "\n".join(lines)


def _render_variant(schema: Any, indent: str, notes: Sequence[str]) -> str:
    ending = f" // {' '.join(notes)}" if notes else ""
    return f"{indent} | {_render_nullable(schema, indent + _VARIANT_INDENT)}{ending}"


def _render_nullable(schema: Any, indent: str) -> str:
    kind = _render_type(schema, indent)
    is_nullable = isinstance(schema, Mapping) and schema.get("nullable") is True
    return f"{kind} | null" if is_nullable and "null" not in kind else kind


def _render_default(schema: Mapping[str, Any], *, is_nested: bool = False) -> str:
    """Renders a default: strings in quotes without escapes; beside an enum bare, or as JSON in a nested choice."""
    value, members = schema["default"], schema.get("enum")
    if not isinstance(value, str):
        return render_json(value)
    if not (isinstance(members, list) and members):
        return f'"{value}"'
    return render_json(value) if is_nested else value


def _text(schema: Any, key: str) -> str | None:
    value = schema.get(key) if isinstance(schema, Mapping) else None
    return value if isinstance(value, str) else None


def _title(schema: Mapping[str, Any], indent: str) -> str:
    title = _text(schema, "title")
    return "" if title is None else f"{indent}// {title}\n{indent}//\n"


def _description(schema: Mapping[str, Any], indent: str) -> str:
    description = _text(schema, "description")
    return "" if description is None else f"{indent}// {description}\n"


def _examples(schema: Mapping[str, Any], indent: str) -> str:
    examples = schema.get("examples")
    if not isinstance(examples, list) or not examples:
        return ""
    listed = "".join(f'{indent}// - "{example}"\n' for example in _strings(examples))
    return f"{indent}// Examples:\n{listed}"
