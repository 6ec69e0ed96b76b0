"""True and false statements about countries and kinds of things, and comparisons of numbers."""

from __future__ import annotations

from hashlib import sha256
from random import Random

from kindling.facts import CATEGORIES, COUNTRIES
from kindling.pairs import PairTable, Relation
from kindling.split import draw_key
from kindling.turn import Turn
from kindling.words import article

CAPITAL_TEMPLATES = (
    "Is {city} the capital of {country}?",
    "Is the capital of {country} {city}?",
    "Yes or no: is {city} the capital of {country}?",
    "Is it true that {city} is the capital of {country}?",
    "{city} is the capital of {country}. Is that right?",
    "Does {country} have {city} as its capital?",
    "Would you say that {city} is the capital of {country}?",
    "Can you confirm that {city} is the capital of {country}?",
)
KIND_TEMPLATES = (
    "Is {a_thing} {a_kind}?",
    "Yes or no: is {a_thing} {a_kind}?",
    "Is it true that {a_thing} is {a_kind}?",
    "{a_thing} is {a_kind}. Is that right?",
    "Would you say that {a_thing} is {a_kind}?",
    "Can you confirm that {a_thing} is {a_kind}?",
    "Does {a_thing} count as {a_kind}?",
    "Do you agree that {a_thing} is {a_kind}?",
)
GREATER_TEMPLATES = (
    "Is {a} greater than {b}?",
    "Yes or no: is {a} greater than {b}?",
    "Is it true that {a} is greater than {b}?",
    "{a} is greater than {b}. Is that right?",
    "Is {a} more than {b}?",
    "Is the number {a} larger than the number {b}?",
    "Would you say that {a} is greater than {b}?",
    "Can you confirm that {a} is greater than {b}?",
)
COMPARED_SHARE = 0.3
COUNTABLE = tuple(kind for kind in CATEGORIES if kind not in ("metal", "drink", "sport", "science", "colour"))

PLANTS = frozenset({"fruit", "vegetable", "flower", "tree"})  # a cherry is a fruit and a tree: not asked


def _others(key: str, choices: list[str], count: int = 2) -> list[str]:
    """Returns the same few wrong choices for a key every time, so that each false statement is one fact."""
    return sorted(choices, key=lambda choice: sha256(f"{key}/{choice}".encode()).digest())[:count]


def _capital_facts(truth: bool) -> tuple[dict[str, str], ...]:
    cities = [country.capital for country in COUNTRIES]
    return tuple(
        {"country": c.name, "capital": c.capital, "city": city}
        for c in COUNTRIES
        for city in ([c.capital] if truth else _others(c.name, [city for city in cities if city != c.capital]))
    )


def _kind_facts(truth: bool) -> tuple[dict[str, str], ...]:
    rows = []
    for kind in COUNTABLE:
        for thing in CATEGORIES[kind][1]:
            wrong = [other for other in COUNTABLE if other != kind and not {kind, other} <= PLANTS]
            for stated in [kind] if truth else _others(thing, wrong):
                rows.append(
                    {"a_thing": f"{article(thing)} {thing}", "a_kind": f"{article(stated)} {stated}", "kind": kind}
                )
    return tuple(rows)


def _relation(
    name: str, truth: bool, subject: str, templates: tuple[str, ...], is_a: str, working: str
) -> Relation:
    first, last = is_a.split(" | ")
    return Relation(
        name=f"{name} {truth}".lower(),
        topic="a statement that is true or false",
        subject=subject,
        templates=templates,
        answer=f"Yes, {first} is {last}." if truth else f"No, {first} is not {last}.",
        working=working,
        word="Yes" if truth else "No",
        facts=_capital_facts(truth) if name == "capital" else _kind_facts(truth),
    )


def _capitals(truth: bool) -> Relation:
    is_a, working = "{city} | the capital of {country}", "{country}, capital: {capital}."
    return _relation("capital", truth, "{city} in {country}", CAPITAL_TEMPLATES, is_a, working)


def _kinds(truth: bool) -> Relation:
    return _relation(
        "kind", truth, "{a_thing} as {a_kind}", KIND_TEMPLATES, "{a_thing} | {a_kind}", "{a_thing}, kind: {kind}."
    )


TABLE = PairTable("yes_no", (_capitals(True), _capitals(False), _kinds(True), _kinds(False)))


def draw(rng: Random, held_out: bool) -> Turn:
    return _compared(rng, held_out) if rng.random() < COMPARED_SHARE else TABLE.draw(rng, held_out)


def _compared(rng: Random, held_out: bool) -> Turn:
    a, b = draw_key("yes_no", held_out, lambda: _numbers(rng), lambda pair: f"{max(pair)} and {min(pair)}")
    truth = a > b
    return Turn(
        family="yes_no",
        key=f"{max(a, b)} and {min(a, b)}",
        question=rng.choice(GREATER_TEMPLATES).format(a=a, b=b),
        topic="the size of two numbers",
        working=f"{a} {'>' if truth else '<'} {b}.",
        answer=f"Yes, {a} is greater than {b}." if truth else f"No, {a} is not greater than {b}.",
        word="Yes" if truth else "No",
    )


def _numbers(rng: Random) -> tuple[int, int]:
    a, b = rng.sample(range(10 ** rng.randint(1, 3)), 2)
    return a, b
