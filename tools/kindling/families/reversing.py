"""Write a word backwards: spell it, reverse the letters, join them."""

from __future__ import annotations

from random import Random

from kindling.families.spelling import draw_word
from kindling.turn import Turn

TEMPLATES = (
    "Reverse the word {word}.",
    "Write {word} backwards.",
    "What is {word} spelled backwards?",
    "Turn the word {word} around.",
    'Reverse "{word}".',
    'Write the letters of "{word}" in reverse order.',
    "Please reverse the word {word} for me.",
    "How does {word} read from right to left?",
)


def draw(rng: Random, held_out: bool) -> Turn:
    word = draw_word(rng, held_out)
    return Turn(
        family="reversing",
        key=word,
        question=rng.choice(TEMPLATES).format(word=word),
        topic="a word backwards",
        working=f"{' '.join(word)} > {' '.join(word[::-1])}",
        answer=word[::-1],
        always_works=True,
    )
