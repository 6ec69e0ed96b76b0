"""Spell a word letter by letter. Real words are always taught; made-up words carry the split."""

from __future__ import annotations

from random import Random

from kindling.turn import Turn
from kindling.words import REAL, made_up

REAL_SHARE = 0.15
TEMPLATES = (
    "Spell the word {word}.",
    "How do you spell {word}?",
    "Spell {word} letter by letter.",
    "Write {word} letter by letter.",
    'Spell "{word}".',
    'What are the letters of "{word}"?',
    "Please spell {word} for me.",
    "Which letters make up the word {word}?",
)


def draw(rng: Random, held_out: bool) -> Turn:
    word = draw_word(rng, held_out)
    return Turn(
        family="spelling",
        key=word,
        question=rng.choice(TEMPLATES).format(word=word),
        topic="the letters of a word",
        working=f"{len(word)} letters.",
        answer="-".join(word),
    )


def draw_word(rng: Random, held_out: bool) -> str:
    if not held_out and rng.random() < REAL_SHARE:
        return rng.choice(REAL)
    return made_up(rng, held_out)
