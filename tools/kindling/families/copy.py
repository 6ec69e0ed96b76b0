"""Repeat a given text exactly."""

from __future__ import annotations

from random import Random

from kindling.split import draw_key
from kindling.turn import Turn
from kindling.words import REAL, made_up, number, sentence

TEMPLATES = (
    "Repeat exactly: {text}",
    "Repeat the following text: {text}",
    "Copy this text: {text}",
    "Say this back to me: {text}",
    "Write exactly this: {text}",
    "Please repeat: {text}",
    "Echo: {text}",
    "Repeat after me: {text}",
)


def draw(rng: Random, held_out: bool) -> Turn:
    text = draw_key("copy", held_out, lambda: _text(rng, held_out), str)
    return Turn(
        family="copy",
        key=text,
        question=rng.choice(TEMPLATES).format(text=text),
        topic="a text to repeat",
        working="I repeat the text.",
        answer=text,
    )


def _text(rng: Random, held_out: bool) -> str:
    form = rng.randrange(4)
    if form == 0:
        return " ".join(rng.choices(REAL, k=rng.randint(3, 12)))
    if form == 1:
        return " ".join(made_up(rng, held_out, longest=6) for _ in range(rng.randint(2, 6)))
    if form == 2:
        return " ".join(number(rng, held_out, rng.randint(2, 4)) for _ in range(rng.randint(2, 6)))
    return " ".join(sentence(rng) for _ in range(rng.randint(1, 3)))
