"""Answer from the result of a function."""

from __future__ import annotations

import json
from random import Random

from kindling.families import tool_call
from kindling.turn import Turn
from kindling.words import PLACES, number

STATES = (
    *("ready", "open", "closed", "late", "full", "empty", "new", "old", "big", "small", "cheap", "busy"),
    *("free", "done", "lost", "found", "broken", "safe", "long", "short", "early", "good", "bad", "quiet"),
)
ERRORS = ("not found", "not allowed", "out of time", "no connection", "wrong value")
EXTRA_FIELDS = ("id", "time", "source", "page")
ERROR_SHARE = 0.15


def draw(rng: Random, held_out: bool) -> Turn:
    turn = tool_call.draw(rng, held_out)
    noun = turn.key.split("_")[1]
    result: dict[str, str | int]
    if rng.random() < ERROR_SHARE:
        error = rng.choice(ERRORS)
        result, reading = {"error": error}, f"The result has error: {error}."
        answer = f"The tool failed: {error}."
    else:
        value = _value(rng, held_out)
        result, reading = _result(rng, noun, value), f"The result has {noun}: {value}."
        answer = f"The {noun} is {value}."
    text = json.dumps(result, separators=(",", ":"))
    return tool_call.with_result(turn, result=text, reading=reading, answer=answer)


def _value(rng: Random, held_out: bool) -> str | int:
    return int(number(rng, held_out, rng.randint(2, 4))) if rng.random() < 0.5 else rng.choice(STATES)


def _result(rng: Random, noun: str, value: str | int) -> dict[str, str | int]:
    """Returns the requested field among up to two others."""
    fields: dict[str, str | int] = {noun: value}
    for name in rng.sample(EXTRA_FIELDS, rng.randint(0, 2)):
        fields[name] = rng.choice(PLACES) if name == "source" else rng.randint(1, 999)
    return {name: fields[name] for name in rng.sample(list(fields), len(fields))}
