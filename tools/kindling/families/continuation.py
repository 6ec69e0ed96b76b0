"""Plain text without the chat format: the beginning of a sentence and its end."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from kindling.facts import CATEGORIES, COUNTRIES, OPPOSITES, ORDERED
from kindling.pairs import PairTable, Relation
from kindling.turn import Turn
from kindling.words import article, sentence

MOST_SENTENCES = 6
CAPITAL_TEMPLATES = (
    "The capital of {country} is",  # the answer of family capitals
    "The capital city of {country} is",
    "{country} has its capital in",
    "The government of {country} sits in",
    "People who visit the capital of {country} go to",
    "The name of the capital of {country} is",
    "In {country} the capital is",
    "As everyone knows, the capital of {country} is",
    "The capital city of the country {country} is called",
)
CONTINENT_TEMPLATES = (
    "The country {country} lies in",
    "{country} can be found in",
    "The continent of {country} is",
    "On the map, {country} is in",
    "Someone from {country} comes from",
    "A traveller to {country} travels to",
    "The people of {country} live in",
    "The part of the world around {country} is called",
)
KIND_TEMPLATES = (
    "{a_thing} is a kind of",
    "Everyone knows that {a_thing} is a kind of",
    "The word {thing} names a",
    "If you see {a_thing}, you see a",
    "{thing} belongs to the class",
    "By kind, {a_thing} is a",
    "The right class for {a_thing} is",
    "We call {a_thing} a",
)
OPPOSITE_TEMPLATES = (
    "The opposite of {word} is",
    "The contrary of {word} is",
    "If something is not {word}, it is",
    "{word} and its opposite:",
    "The word that means the opposite of {word} is",
    "Not {word} but",
    "Someone who does not say {word} says",
    "Opposites are {word} and",
)
NEXT_TEMPLATES = (
    "After {item} comes",
    "{item} is followed by",
    "The {kind} that comes next after {item} is",
    "First {item}, then",
    "Right after {item} we have",
    "The {kind} behind {item} is",
    "When {item} is over, next is",
    "{item} comes first and then comes",
)

MASS = ("metal", "drink", "sport", "science", "colour")  # kinds whose members take no article


def _relation(name: str, subject: str, templates: tuple[str, ...], facts: list[dict[str, str]]) -> Relation:
    return Relation(
        name=name,
        topic="plain text",
        subject=subject,
        templates=templates,
        answer=" {value}.",
        working="",
        said_elsewhere=frozenset({0}) if name == "capital" else frozenset(),
        facts=tuple(facts),
    )


def _kinds() -> list[dict[str, str]]:
    return [
        {"thing": thing, "a_thing": thing if kind in MASS else f"{article(thing)} {thing}", "value": kind}
        for kind, (_, things) in CATEGORIES.items()
        for thing in things
        if kind not in ("instrument", "insect")  # "a" would have to be "an"
    ]


def _next() -> list[dict[str, str]]:
    return [
        {"kind": kind, "item": item, "value": following}
        for kind, (_, items, _) in ORDERED.items()
        if kind != "letter"
        for item, following in pairwise(items)
    ]


TABLE = PairTable(
    "continuation",
    (
        _relation(
            "capital", "{country}", CAPITAL_TEMPLATES, [{"country": c.name, "value": c.capital} for c in COUNTRIES]
        ),
        _relation(
            "continent",
            "{country}",
            CONTINENT_TEMPLATES,
            [{"country": c.name, "value": c.continent} for c in COUNTRIES],
        ),
        _relation("kind", "{thing}", KIND_TEMPLATES, _kinds()),
        _relation(
            "opposite",
            "{word}",
            OPPOSITE_TEMPLATES,
            [{"word": a, "value": b} for pair in OPPOSITES for a, b in (pair, pair[::-1])],
        ),
        _relation("next", "{kind} {item}", NEXT_TEMPLATES, _next()),
    ),
)
draw = TABLE.draw


def draw_text(rng: Random, held_out: bool) -> str:
    """Draws a few sentences: facts, and sometimes filler between them."""
    parts = [_fact(rng, held_out) for _ in range(rng.randint(1, MOST_SENTENCES))]
    if rng.random() < 0.3:
        parts += [sentence(rng) for _ in range(rng.randint(1, 8))]
    return " ".join(parts)


def _fact(rng: Random, held_out: bool) -> str:
    turn: Turn = draw(rng, held_out)
    return f"{turn.question}{turn.answer}"
