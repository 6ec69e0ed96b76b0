"""Builds a grammar of the whole Harmony turn from tools, tool_choice and response_format.

A turn is reasoning messages followed by a final message or tool calls. A required call is preceded by at most two
reasoning messages: a model that does not want to call would otherwise reason without end. The grammar includes the
special tokens, so a format for the answer does not restrict the reasoning before it. It is written in the Lark
dialect of llguidance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from firesteel.chat.harmony import ResponseFormat
from firesteel.chat.keywords import find_misuse
from firesteel.chat.pattern import drop_patterns
from firesteel.chat.schema import find_cost, find_flaw
from firesteel.chat.text_rule import ANY_TEXT, lark_rule, regex_rule
from firesteel.chat.tools import TextRule, Tool
from firesteel.chat.trial import MISSING, PANIC, STACK_BYTES, TrialPanic, find_fault
from firesteel.errors import RequestError, UserError
from firesteel.untrusted.panics import panics_as
from firesteel.untrusted.stack import call_with_stack

CHOICES = ("auto", "none", "required")
JSON_OBJECT = ResponseFormat(name="json_object", schema={"type": "object"})
# A space, or a newline and indentation. Unlimited whitespace would let a confused model write blanks without end.
BLANKS = r"\x20|\x0D?\x0A[\x20\x09]{0,32}"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,160}")  # a namespace and a name of 64 each, and room
_SPECIAL = re.compile(r"<\|\w+\|>")
ANSWER = "response_format"  # name of the rule of the answer
# Without no_forcing, llguidance encodes forced text with the tokenizer's own rules: `<|end|>` in a constant of a
# schema would become the special token.
_TURN = r"""
%llguidance {"no_forcing": true}
start: (thought opening){many} ({last})
opening: <|start|> "assistant"
thought: <|channel|> ({channels}) <|message|> TEXT <|end|>
channel: <|channel|> ("commentary" | "analysis")
kind: " "? <|constrain|> "json" | " json" | " code"
plain: " text" | " code"
TEXT: /(.|\n)*/
"""


_TEXT = """
%llguidance {"no_forcing": true}
start: answer (<|return|> | <|endoftext|>)
"""


class SchemaError(RequestError):
    """A schema or grammar that cannot be enforced. `name` is that of its rule: the request's field, or a tool."""

    def __init__(self, name: str, fault: str) -> None:
        what = next((kind for kind in ("regex", "choice", "grammar") if name.endswith(kind)), "JSON schema")
        super().__init__(f"{name}: the {what} cannot be enforced: {fault}")
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A form that the answer must have, as the body of a rule; constraint.py builds them."""

    name: str  # field of the request, for errors
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A grammar that was not compiled yet, with what its trial needs."""

    text: str  # for `SamplingParams.grammar`
    trial: str  # the same with special tokens as plain text: a vocabulary of bytes has none
    rules: dict[str, str]  # rules of client's schemas, by name


def grammar_for(
    *,
    tools: Sequence[Tool] = (),
    tool_choice: str = "auto",
    function: str | None = None,
    parallel_tool_calls: bool = True,
    response_format: ResponseFormat | None = None,
) -> str | None:
    """Returns a grammar for `SamplingParams.grammar`, or None if the model may write anything.

    The arguments are those of `build_grammar`. The grammar is compiled on trial in this process.
    """
    grammar = build_grammar(
        tools=tools,
        tool_choice=tool_choice,
        function=function,
        parallel_tool_calls=parallel_tool_calls,
        response_format=response_format,
    )
    if grammar is None:
        return None
    fault = _try_here(tuple(grammar.rules.items()), grammar.trial)
    if fault is not None:
        raise SchemaError(*fault)
    return grammar.text


def build_grammar(
    *,
    tools: Sequence[Tool] = (),
    tool_choice: str = "auto",
    function: str | None = None,
    parallel_tool_calls: bool = True,
    response_format: ResponseFormat | None = None,
    constraint: Constraint | None = None,
) -> Grammar | None:
    """Builds the grammar of a turn, or returns None if the model may write anything.

    `tool_choice` is auto, none or required; `function` names one function that must be called. Arguments follow
    their schema if a call is required or the tool is strict; otherwise they are any JSON object. Without parallel
    calls, and with `function`, the first call ends the turn. Raises RequestError for a schema beyond the limits;
    only a trial shows whether the others can be enforced. A schema that is not strict is enforced as far as
    possible. A `constraint` is another form of the answer; it excludes `response_format`.
    """
    if response_format is not None:
        rule = _json_rule(response_format.schema, strict=response_format.strict, name=ANSWER)
        constraint = Constraint(name=ANSWER, rule=rule)
    offered = _offered(tools, tool_choice, function)
    must_call = function is not None or tool_choice == "required"
    is_free = not offered or (parallel_tool_calls and not any(map(_has_form, offered)))
    if tool_choice == "auto" and function is None and constraint is None and is_free:
        return None
    last, frame = [], []
    rules, bodies = {}, []
    if not must_call:
        last.append('<|channel|> "final" <|message|> answer <|return|>')
        if constraint is None:
            bodies.append("answer: TEXT\n")
        else:
            rules[constraint.name] = constraint.rule
            bodies.append(f"answer: {constraint.rule}\n")
    for index, tool in enumerate(offered):
        name = _rule_name(tool)
        rules[name] = _argument_rule(tool, must_call=must_call, name=name)
        frame.append(_call_rule(index, tool))
        bodies.append(f"arguments_{index}: {rules[name]}\n")
    if offered:
        call = f"({' | '.join(f'call_{index}' for index in range(len(offered)))})"
        more = f"({call} <|end|> opening)* " if parallel_tool_calls and function is None else ""
        last.append(f"{more}{call} <|call|>")
    # Text of the commentary channel is shown to the user and would come before the formatted answer.
    channels = '"analysis"' if constraint is not None else '"analysis" | "commentary"'
    turn = _TURN.replace("{many}", "{0,2}" if must_call else "*").replace("{channels}", channels)
    opening, body = turn.replace("{last}", " | ".join(last)) + "".join(frame), "".join(bodies)
    return _join(opening, body, rules)


def build_text_grammar(constraint: Constraint) -> Grammar:
    """Builds the grammar of a plain text that has the form of the constraint and then ends."""
    return _join(_TEXT, f"answer: {constraint.rule}\n", {constraint.name: constraint.rule})


def _join(opening: str, body: str, rules: dict[str, str]) -> Grammar:
    return Grammar(text=opening + body, trial=_SPECIAL.sub(r'"\g<0>"', opening) + body, rules=rules)


def _offered(tools: Sequence[Tool], tool_choice: str, function: str | None) -> list[Tool]:
    if tool_choice not in CHOICES:
        raise RequestError(
            f"tool_choice = {tool_choice!r}: must be one of {', '.join(CHOICES)}, or name a function"
        )
    for tool in tools:
        if _NAME.fullmatch(tool.name) is None:
            raise RequestError(
                f"tool {tool.name!r}: a name must be 1 to 160 letters, digits, underscores, dots and dashes"
            )
    names = [tool.name for tool in tools]
    if function is not None:
        if function not in names:
            raise RequestError(f"tool_choice names {function!r}, but tools are {', '.join(names) or 'empty'}")
        return [tool for tool in tools if tool.name == function]
    if tool_choice == "required" and not tools:
        raise RequestError("tool_choice = 'required' without tools: give tools, or leave tool_choice out")
    return [] if tool_choice == "none" else list(tools)


def _rule_name(tool: Tool) -> str:
    """Returns the name of the tool's rule in errors, which tell a grammar from a schema by the last word."""
    kinds = {"lark": " grammar", "regex": " regex"}
    return f"tool {tool.name!r}" + ("" if tool.text is None else kinds.get(tool.text.syntax, ""))


def _has_form(tool: Tool) -> bool:
    """Returns whether the tool's argument must follow its form even if no call is required."""
    return tool.strict or (tool.text is not None and tool.text.syntax != "text")


def _call_rule(index: int, tool: Tool) -> str:
    """Returns the rule of a call. gpt-oss writes the recipient after the channel, Harmony's renderer before it."""
    to = f'" to=functions.{tool.name}"'
    kind = "kind" if tool.text is None else "plain"
    return f"call_{index}: ({to} channel | channel {to}) {kind}? <|message|> arguments_{index}\n"


def _argument_rule(tool: Tool, *, must_call: bool, name: str) -> str:
    """Returns the rule of the argument: text of its form, or JSON of its schema."""
    if tool.text is not None:
        return _text_rule(tool.text)
    if tool.parameters is None or not (must_call or tool.strict):
        return _json_rule({"type": "object"}, strict=tool.strict, name=name)
    return _json_rule(tool.parameters, strict=tool.strict, name=name, may_drop=not tool.strict)


def _text_rule(rule: TextRule) -> str:
    match rule.syntax:
        case "lark":
            return lark_rule(rule.definition)
        case "regex":
            return regex_rule(rule.definition)
    return ANY_TEXT


def constrain_json(
    schema: Mapping[str, Any], *, name: str, strict: bool = True, blanks: str = BLANKS
) -> Constraint:
    """Builds the constraint of a schema; `blanks` is a pattern of the whitespace between its parts."""
    return Constraint(name=name, rule=_json_rule(schema, strict=strict, name=name, blanks=blanks))


def _json_rule(
    schema: Mapping[str, Any], *, strict: bool, name: str, blanks: str = BLANKS, may_drop: bool = False
) -> str:
    """Returns the rule of a schema; with `may_drop`, without the patterns that cannot be enforced."""
    if not isinstance(schema, Mapping):
        raise RequestError(f"{name}: the schema must be an object, not {type(schema).__name__}")
    if flaw := find_flaw(schema) or find_misuse(schema) or find_cost(schema):
        raise SchemaError(name, flaw)
    if may_drop:
        schema = drop_patterns(schema, name)
    options = {"whitespace_pattern": blanks, "lenient": not strict}
    try:
        return f"%json {json.dumps({**schema, 'x-guidance': options}, allow_nan=False)}"
    except (TypeError, ValueError) as error:
        raise RequestError(f"{name}: the schema is not JSON: {error}") from error


@lru_cache(maxsize=512)  # the same tools come with every turn
def _try_here(rules: tuple[tuple[str, str], ...], whole: str) -> tuple[str, str] | None:
    try:
        with panics_as(TrialPanic, PANIC):
            return call_with_stack(STACK_BYTES, lambda: find_fault(dict(rules), whole))
    except TrialPanic as error:
        raise RequestError(f"a JSON schema cannot be enforced: llguidance fails on it ({error})") from error
    except ImportError as error:
        raise UserError(MISSING) from error
