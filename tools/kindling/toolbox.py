"""Random functions with schemas, and arguments for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from firesteel.chat.tools import Tool
from kindling.facts import COUNTRIES
from kindling.split import draw_key
from kindling.words import FIRST_NAMES, PLACES, capitalise, made_up

VERBS = (
    *("get", "find", "send", "create", "delete", "update", "show", "check", "book", "cancel", "count", "search"),
    *("open", "close", "read", "start", "stop", "move", "add", "remove", "print", "save", "load", "share"),
)
NOUNS = (
    *(
        "weather",
        "price",
        "order",
        "ticket",
        "room",
        "message",
        "file",
        "report",
        "alarm",
        "timer",
        "song",
        "photo",
    ),
    *("table", "flight", "hotel", "train", "car", "invoice", "note", "task", "meeting", "contact", "address"),
    *(
        "package",
        "recipe",
        "route",
        "map",
        "lamp",
        "door",
        "account",
        "payment",
        "user",
        "event",
        "score",
        "forecast",
    ),
    *("news", "stock", "movie", "game", "calendar", "budget", "garden", "camera", "heater", "window", "folder"),
)
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    schema: dict[str, Any]
    draw: Callable[[Random, bool], Value]
    phrase: str  # how a natural question mentions the value; "" if only "name value" is clear


def _string(name: str, draw: Callable[[Random, bool], str], phrase: str) -> Parameter:
    return Parameter(name, {"type": "string"}, draw, phrase)


def _choice(name: str, phrase: str, *choices: str) -> Parameter:
    return Parameter(
        name, {"type": "string", "enum": list(choices)}, lambda rng, held_out: rng.choice(choices), phrase
    )


def _integer(name: str, low: int, high: int, phrase: str) -> Parameter:
    return Parameter(name, {"type": "integer"}, lambda rng, held_out: rng.randint(low, high), phrase)


def _number(name: str, phrase: str) -> Parameter:
    return Parameter(
        name, {"type": "number"}, lambda rng, held_out: rng.randint(0, 99) + rng.randint(1, 9) / 10, phrase
    )


def _boolean(name: str) -> Parameter:
    return Parameter(name, {"type": "boolean"}, lambda rng, held_out: rng.random() < 0.5, "")


def _date(rng: Random, held_out: bool) -> str:
    return f"20{rng.randint(20, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


PARAMETERS = (
    _string("city", lambda rng, held_out: rng.choice(COUNTRIES).capital, "in {value}"),
    _string("person", lambda rng, held_out: rng.choice(FIRST_NAMES), "for {value}"),
    _string("place", lambda rng, held_out: rng.choice(PLACES), "at the {value}"),
    _string("title", made_up, "called {value}"),
    _string("code", made_up, "with the code {value}"),
    _string("date", _date, "on {value}"),
    _integer("days", 2, 30, "for {value} days"),
    _integer("amount", 2, 999, "{value} times"),
    _integer("year", 1900, 2030, "in the year {value}"),
    _integer("page", 1, 99, "on page {value}"),
    _integer("limit", 1, 100, "with at most {value} results"),
    _choice("unit", "in {value} units", "metric", "imperial"),
    _choice("size", "in {value} size", "small", "medium", "large"),
    _choice("colour", "in the colour {value}", "red", "green", "blue", "white"),
    _choice("mode", "in {value} mode", "fast", "slow", "silent", "normal"),
    _boolean("urgent"),
    _boolean("detailed"),
    _boolean("private"),
    _number("weight", "with a weight of {value}"),
    _number("factor", "by a factor of {value}"),
)
BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}


def draw_name(rng: Random, held_out: bool) -> str:
    return draw_key("tool", held_out, lambda: f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}", str)


def draw_tool(rng: Random, name: str) -> Tool:
    parameters = rng.sample(PARAMETERS, rng.choice((1, 1, 2, 2, 3)))
    is_described = rng.random() < 0.3
    required = [p.name for p in parameters[: rng.randint(1, len(parameters))]]
    properties = {
        p.name: p.schema | ({"description": f"The value of {p.name}."} if is_described else {}) for p in parameters
    }
    verb, noun = name.split("_")
    return Tool(
        name=name,
        description=f"{capitalise(verb)} the {noun}.",
        parameters={"type": "object", "properties": properties, "required": required},
    )


def draw_tools(rng: Random, held_out: bool) -> tuple[tuple[Tool, ...], Tool]:
    """Draws three to five functions of different names and the one to call; only that one may be held out."""
    wanted = draw_name(rng, held_out)
    names = {wanted: None}
    count = rng.choice((3, 3, 3, 4, 5))
    while len(names) < count:
        names[draw_name(rng, held_out=False)] = None
    tools = [draw_tool(rng, name) for name in rng.sample(list(names), count)]
    return tuple(tools), next(tool for tool in tools if tool.name == wanted)


def draw_arguments(rng: Random, held_out: bool, tool: Tool) -> dict[str, Value]:
    """Draws all required parameters and sometimes the others, in the order of the schema."""
    assert tool.parameters is not None
    required = tool.parameters["required"]
    return {
        name: BY_NAME[name].draw(rng, held_out)
        for name in tool.parameters["properties"]
        if name in required or rng.random() < 0.5
    }
