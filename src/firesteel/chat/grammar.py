"""What a client asks of an answer's form, as a grammar of the whole Harmony turn. Knows no tokens and no engine.

A turn is thoughts and then a final message or calls. Before a call that is demanded stand two thoughts at most: a
model that wants no call would think for ever. The grammar holds the special tokens too, so that a form for the
answer never bars the reasoning before it. Its text is Lark's, as llguidance reads it.
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
# A space, or a new line and its indentation: a model that has lost its way would write blanks without end.
BLANKS = r"\x20|\x0D?\x0A[\x20\x09]{0,32}"
NUM_BYTES = 256
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SURROUNDINGS = re.compile(r"^.*JSON schema: |\n +1 \|.*", re.DOTALL)  # of an error: where it is in our own text
# Text that is the only one possible would else be drawn as the tokenizer's file encodes it: `<|end|>` in a schema's
# constant would be the special token.
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
    """For `SamplingParams.grammar`; None where the model may write what it likes.

    `tool_choice` is auto, none or required; `function` names the one that must be called instead. Arguments follow
    their schema where a call is demanded or the tool is strict, else they are some JSON object. Without parallel
    calls the first one ends the turn. Raises RequestError for a schema that cannot be enforced; what is not strict
    is enforced as far as it can be.
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
    # Text of the commentary channel is shown, and would stand before the answer.
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
                f"tool {tool.name!r}: a name is 1 to 64 letters, digits, underscores, dots and dashes"
            )
    names = [tool.name for tool in tools]
    if function is not None:
        if function not in names:
            raise RequestError(f"tool_choice names {function!r}, tools have {', '.join(names) or 'nothing'}")
        return [tool for tool in tools if tool.name == function]
    if tool_choice == "required" and not tools:
        raise RequestError("tool_choice = 'required' without tools: name some, or leave it out")
    return [] if tool_choice == "none" else list(tools)


def _call_rule(index: int, tool: Tool, *, must_call: bool) -> str:
    """The recipient may stand in either place: gpt-oss writes it after the channel, Harmony's renderer before."""
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
        raise RequestError(f"{what}: the schema is {type(schema).__name__}, not an object")
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


@lru_cache(maxsize=512)  # tools come again with every turn
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
    return None if can_begin else "nothing satisfies it, as it only refers to itself"
