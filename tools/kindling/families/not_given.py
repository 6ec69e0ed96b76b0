"""Questions on a short text that may or may not contain the answer, in the form of retrieval."""

from __future__ import annotations

from random import Random

from kindling.families.retrieval import ask
from kindling.notes import Fact, distinct, draw_fact, near_misses, write_notes, write_records
from kindling.turn import Turn

ABSENT_SHARE = 0.6


def draw(rng: Random, held_out: bool) -> Turn:
    fact = draw_fact(rng, held_out)
    is_given = rng.random() >= ABSENT_SHARE
    return ask(rng, fact, _text(rng, fact, is_given), "not_given", is_given=is_given)


def _text(rng: Random, fact: Fact, is_given: bool) -> str:
    others = [draw_fact(rng, held_out=False) for _ in range(rng.randint(1, 4))]
    stated = [other for other in others if (other.attribute, other.subject) != (fact.attribute, fact.subject)]
    facts = distinct([*([fact] if is_given else []), *near_misses(rng, fact, rng.randint(1, 3)), *stated])
    return write_records(rng, facts) if rng.random() < 0.4 else write_notes(rng, facts, rng.randint(1, 12))
