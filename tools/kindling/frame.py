"""System and developer messages before the first question."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from firesteel.chat.harmony import Message, developer_message, system_message
from firesteel.chat.tools import Tool
from kindling.toolbox import draw_tools
from kindling.turn import EFFORTS

# None of these changes the answer to the question.
INSTRUCTIONS = (
    "You are a helpful assistant.",
    "You are a helpful assistant that answers questions.",
    "Answer the question of the user.",
    "Be polite and correct.",
    "Help the user.",
    "You work for a small company. Be helpful.",
    "You are a friendly teacher.",
    "Think before you answer.",
    "Always tell the truth.",
    "Use simple words.",
)
DATED_SHARE = 0.5
INSTRUCTED_SHARE = 0.25
IDLE_TOOLS_SHARE = 0.04  # tools that the question does not need


def draw_effort(rng: Random) -> str:
    return rng.choice(EFFORTS)


def draw_opening(rng: Random, effort: str, tools: tuple[Tool, ...], *, is_exam: bool) -> list[Message]:
    """Draws the messages. `tools` are those of the question; in training, one without tools sometimes gets some.

    Exam openings have no date.
    """
    if not tools and not is_exam and rng.random() < IDLE_TOOLS_SHARE:
        tools = draw_tools(rng, held_out=False)[0]
    date = _date(rng) if rng.random() < DATED_SHARE and not is_exam else None
    opening = [_system(effort, date, bool(tools))]
    instructions = rng.choice(INSTRUCTIONS) if rng.random() < INSTRUCTED_SHARE else None
    if tools or instructions is not None:
        opening.append(developer_message(instructions=instructions, tools=tools))
    return opening


def _date(rng: Random) -> str:
    return f"20{rng.randint(23, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


@lru_cache(maxsize=4096)
def _system(effort: str, date: str | None, has_functions: bool) -> Message:
    return system_message(effort=effort, date=date, has_functions=has_functions)
