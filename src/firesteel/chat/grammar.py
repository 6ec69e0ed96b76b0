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
from functools import lru_cache
from typing import Any

from firesteel.chat.harmony import ResponseFormat
from firesteel.chat.schema import find_cost, find_flaw
from firesteel.chat.tools import Tool
from firesteel.errors import RequestError, UserError

CHOICES = ("auto", "none", "required")
JSON_OBJECT = ResponseFormat(name="json_object", schema={"type": "object"})
# A space, or a newline and indentation. Unlimited whitespace would let a confused model write blanks without end.
BLANKS = r"\x20|\x0D?\x0A[\x20\x09]{0,32}"
NUM_BYTES = 256
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SURROUNDINGS = re.compile(r"^.*JSON schema: |\n +1 \|.*", re.DOTALL)  # parts of an error that quote our own text
# Without no_forcing, llguidance encodes forced text with the tokenizer's own rules: `<|end|>` in a constant of a
# schema would become the special token.
_TURN = r"""
%llguidance {"no_forcing": true}
start: (thought opening){many} ({last})
opening: <|start|> "assistant"
thought: <|channel|> ({channels}) <|message|> TEXT <|end|>
channel: <|channel|> ("commentary" | "analysis")
kind: " "? <|constrain|> "json" | " json" | " code"
TEXT: /(.|\n)*/
"""


def grammar_for(
    *,
    tools: Sequence[Tool] = (),
    tool_choice: str = "auto",
    function: str | None = None,
    parallel_tool_calls: bool = True,
    response_format: ResponseFormat | None = None,
) -> str | None:
    """Returns a grammar for `SamplingParams.grammar`, or None if the model may write anything.

    `tool_choice` is auto, none or required; `function` names one function that must be called. Arguments follow
    their schema if a call is required or the tool is strict; otherwise they are any JSON object. Without parallel
    calls the first call ends the turn. Raises RequestError for a schema that cannot be enforced; a schema that is
    not strict is enforced as far as possible.
    """
    offered = _offered(tools, tool_choice, function)
    must_call = function is not None or tool_choice == "required"
    is_free = not offered or (parallel_tool_calls and not any(tool.strict for tool in offered))
    if tool_choice == "auto" and function is None and response_format is None and is_free:
        return None
    rules = [_call_rule(index, tool, must_call=must_call) for index, tool in enumerate(offered)]
    last = [] if must_call else [f'<|channel|> "final" <|message|> {_answer(response_format)} <|return|>']
    if offered:
        call = f"({' | '.join(f'call_{index}' for index in range(len(offered)))})"
        more = f"({call} <|end|> opening)* " if parallel_tool_calls else ""
        last.append(f"{more}{call} <|call|>")
    # Text of the commentary channel is shown to the user and would come before the formatted answer.
    channels = '"analysis"' if response_format is not None else '"analysis" | "commentary"'
    turn = _TURN.replace("{many}", "{0,2}" if must_call else "*").replace("{channels}", channels)
    return turn.replace("{last}", " | ".join(last)) + "".join(rules)


def _offered(tools: Sequence[Tool], tool_choice: str, function: str | None) -> list[Tool]:
    if tool_choice not in CHOICES:
        raise RequestError(
            f"tool_choice = {tool_choice!r}: must be one of {', '.join(CHOICES)}, or name a function"
        )
    for tool in tools:
        if _NAME.fullmatch(tool.name) is None:
            raise RequestError(
                f"tool {tool.name!r}: a name must be 1 to 64 letters, digits, underscores, dots and dashes"
            )
    names = [tool.name for tool in tools]
    if function is not None:
        if function not in names:
            raise RequestError(f"tool_choice names {function!r}, but tools are {', '.join(names) or 'empty'}")
        return [tool for tool in tools if tool.name == function]
    if tool_choice == "required" and not tools:
        raise RequestError("tool_choice = 'required' without tools: give tools, or leave tool_choice out")
    return [] if tool_choice == "none" else list(tools)


def _call_rule(index: int, tool: Tool, *, must_call: bool) -> str:
    """Returns the rule of a call. gpt-oss writes the recipient after the channel, Harmony's renderer before it."""
    schema: Mapping[str, Any] = {"type": "object"}
    if tool.parameters is not None and (must_call or tool.strict):
        schema = tool.parameters
    arguments = _json_rule(schema, strict=tool.strict, what=f"tool {tool.name!r}")
    to = f'" to=functions.{tool.name}"'
    return (
        f"call_{index}: ({to} channel | channel {to}) kind? <|message|> arguments_{index}\n"
        f"arguments_{index}: {arguments}\n"
    )


def _answer(response_format: ResponseFormat | None) -> str:
    if response_format is None:
        return "TEXT"
    return _json_rule(response_format.schema, strict=response_format.strict, what="response_format")


def _json_rule(schema: Mapping[str, Any], *, strict: bool, what: str) -> str:
    if not isinstance(schema, Mapping):
        raise RequestError(f"{what}: the schema must be an object, not {type(schema).__name__}")
    if flaw := find_flaw(schema) or find_cost(schema):
        raise RequestError(f"{what}: the JSON schema cannot be enforced: {flaw}")
    options = {"whitespace_pattern": BLANKS, "lenient": not strict}
    try:
        rule = f"%json {json.dumps({**schema, 'x-guidance': options}, allow_nan=False)}"
    except (TypeError, ValueError) as error:
        raise RequestError(f"{what}: the schema is not JSON: {error}") from error
    fault = _find_fault(rule)
    if fault is not None:
        raise RequestError(f"{what}: the JSON schema cannot be enforced: {fault}")
    return rule


@lru_cache(maxsize=512)  # the same tools come with every turn
def _find_fault(rule: str) -> str | None:
    try:
        from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    except ImportError as error:
        raise UserError("grammars need the package llguidance: pip install llguidance") from error
    grammar, limits = f"start: {rule}", LLParserLimits(verbose_errors=False)
    is_fault, notes = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if is_fault:
        return " ".join(_SURROUNDINGS.sub("", notes[0]).split())
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=limits)
    can_begin = any(matcher.compute_logit_bias()[:NUM_BYTES])
    return None if can_begin else "no value satisfies it, because it only refers to itself"
