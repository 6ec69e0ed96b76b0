"""Call the right one of several functions with the arguments named in the question."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

from kindling.toolbox import BY_NAME, Value, draw_arguments, draw_tools
from kindling.turn import Call, Turn
from kindling.words import capitalise

NATURAL_SHARE = 0.4
LISTED = (
    "Please {task} with {arguments}.",
    "{task} with {arguments}.",
    "Can you {task} with {arguments}?",
    "I want you to {task} with {arguments}.",
    "{task}, using {arguments}.",
    "I need to {task} with {arguments}.",
    "Could you {task} for me with {arguments}?",
    "{task}. Use {arguments}.",
)
NATURAL = (
    "Please {task} {arguments}.",
    "{task} {arguments}.",
    "Can you {task} {arguments}?",
    "I want you to {task} {arguments}.",
    "I need to {task} {arguments}.",
    "Could you {task} {arguments}?",
    "Help me to {task} {arguments}.",
    "It is time to {task} {arguments}.",
)


def draw(rng: Random, held_out: bool) -> Turn:
    tools, tool = draw_tools(rng, held_out)
    arguments = draw_arguments(rng, held_out, tool)
    verb, noun = tool.name.split("_")
    text = json.dumps(arguments, separators=(",", ":"))
    return Turn(
        family="tool_call",
        key=tool.name,
        question=_question(rng, f"{verb} the {noun}", arguments),
        topic=f"a task for a tool, to {verb} the {noun}",
        working=f"I call {tool.name} with {', '.join(arguments)}.",
        answer=None,
        call=Call(tools=tools, name=tool.name, arguments=arguments, text=text),
    )


def with_result(turn: Turn, *, result: str, reading: str, answer: str) -> Turn:
    assert turn.call is not None
    return replace(
        turn, family="tool_answer", answer=answer, call=replace(turn.call, result=result, reading=reading)
    )


def _question(rng: Random, task: str, arguments: dict[str, Value]) -> str:
    phrases = [BY_NAME[name].phrase for name in arguments]
    if all(phrases) and rng.random() < NATURAL_SHARE:
        values = [phrase.format(value=value) for phrase, value in zip(phrases, arguments.values(), strict=True)]
        return capitalise(rng.choice(NATURAL).format(task=task, arguments=" ".join(values)))
    values = [f"{name} {_said(value)}" for name, value in arguments.items()]
    listed = " and ".join(filter(None, (", ".join(values[:-1]), values[-1])))
    return capitalise(rng.choice(LISTED).format(task=task, arguments=listed))


def _said(value: Value) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
