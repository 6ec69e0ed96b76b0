"""Questions of other families that ask for a one-word answer."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from kindling.families import capitals, lists, unit_conversion, yes_no
from kindling.turn import Turn

SOURCES = (capitals.draw, capitals.draw, yes_no.draw, lists.draw, unit_conversion.draw)
DEMANDS = (
    "{question} Please reply with one word only.",
    "{question} Please reply with one word only",
    "{question} Reply with one word.",
    "{question} Answer with one word.",
    "{question} Answer in one word only.",
    "{question} Use one word.",
    "{question} One word, please.",
    "{question} Only one word.",
    "In one word: {question}",
    "Reply with one word. {question}",
)

SHOWN_SHARE = 0.01  # llama-benchy's coherence question, word for word
_SHOWN = next(pair.turn("capitals") for pair in capitals.TABLE.pairs if pair.key == "capital|France|0")


def draw(rng: Random, held_out: bool) -> Turn:
    """Draws a question; the split is that of its family, so a held-out question is held out in every wording."""
    if not held_out and rng.random() < SHOWN_SHARE:
        return _demand(_SHOWN, DEMANDS[1])
    while True:
        turn = rng.choice(SOURCES)(rng, held_out)
        if turn.word is not None:
            return _demand(turn, rng.choice(DEMANDS))


def _demand(turn: Turn, demand: str) -> Turn:
    return replace(turn, family="one_word", question=demand.format(question=turn.question), answer=turn.word)
