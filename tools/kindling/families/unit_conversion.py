"""Conversion of whole amounts from one unit to another."""

from __future__ import annotations

from random import Random

from kindling.facts import UNITS, Unit
from kindling.families.arithmetic import multiply
from kindling.split import draw_key
from kindling.turn import Turn

TEMPLATES = (
    "How many {to} are {amount} {of}?",
    "Convert {amount} {of} to {to}.",
    "What is {amount} {of} in {to}?",
    "Express {amount} {of} in {to}.",
    "{amount} {of} in {to}?",
    "How many {to} are there in {amount} {of}?",
    "Change {amount} {of} into {to}.",
    "I have {amount} {of}. How many {to} is that?",
    "{amount} {of} make how many {to}?",
)


def draw(rng: Random, held_out: bool) -> Turn:
    unit, amount = draw_key("unit_conversion", held_out, lambda: _candidate(rng), lambda pair: key(*pair))
    small = amount * unit.factor
    if _zeros(unit.factor) and rng.random() < 0.3:
        working = f"1 {_one(unit.big)} is {unit.factor} {unit.small}. {small} / {unit.factor} = {amount}"
        question = {"amount": small, "of": unit.small, "to": unit.big}
        answer = amount
    else:
        working = f"1 {_one(unit.big)} is {unit.factor} {unit.small}. {_product(amount, unit.factor)}"
        question = {"amount": amount, "of": unit.big, "to": unit.small}
        answer = small
    return Turn(
        family="unit_conversion",
        key=key(unit, amount),
        question=rng.choice(TEMPLATES).format(**question),
        topic="a change of units",
        working=working,
        answer=f"{answer} {question['to']}",
        word=str(answer),
        always_works=True,
    )


def key(unit: Unit, amount: int) -> str:
    return f"{amount} {unit.big} in {unit.small}"


def _candidate(rng: Random) -> tuple[Unit, int]:
    unit = rng.choice(UNITS)
    return unit, rng.randint(2, 999 if _zeros(unit.factor) else 99)


def _zeros(factor: int) -> bool:
    """Returns True for powers of ten, where converting means adding or dropping zeros."""
    return factor in (10, 100, 1000)


def _product(amount: int, factor: int) -> str:
    if _zeros(factor):
        return f"{amount} * {factor} = {amount * factor}"
    if factor == 60:
        return f"{multiply(amount, 6)[0]}, times 10: {amount * 60}"
    return multiply(amount, factor)[0]


def _one(plural: str) -> str:
    return {"feet": "foot", "centuries": "century"}.get(plural, plural.removesuffix("s"))
