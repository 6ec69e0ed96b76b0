"""The families of questions: each draws a turn from the taught or the held-out side of its split."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from kindling.families import (
    arithmetic,
    capitals,
    copy,
    lists,
    not_given,
    one_word,
    retrieval,
    reversing,
    small_talk,
    spelling,
    tool_answer,
    tool_call,
    unit_conversion,
    yes_no,
)
from kindling.turn import Turn

Draw = Callable[[Random, bool], Turn]

# Questions that stand alone, without a text or tools of their own; conversations of several turns mix these.
PLAIN: dict[str, Draw] = {
    "capitals": capitals.draw,
    "arithmetic": arithmetic.draw,
    "unit_conversion": unit_conversion.draw,
    "spelling": spelling.draw,
    "reversing": reversing.draw,
    "yes_no": yes_no.draw,
    "lists": lists.draw,
    "copy": copy.draw,
    "one_word": one_word.draw,
}
CHAT: dict[str, Draw] = PLAIN | {
    "retrieval": retrieval.draw,
    "not_given": not_given.draw,
    "tool_call": tool_call.draw,
    "tool_answer": tool_answer.draw,
}
UNGRADED: dict[str, Draw] = {"small_talk": small_talk.draw}
