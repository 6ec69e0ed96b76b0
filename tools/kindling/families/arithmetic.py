"""Addition, subtraction and small products, worked out column by column from the right."""

from __future__ import annotations

from random import Random

from kindling.split import draw_key
from kindling.turn import Turn

TEMPLATES = {
    "+": (
        "What is {a} + {b}?",
        "Add {a} and {b}.",
        "What is the sum of {a} and {b}?",
        "{a} + {b} = ?",
        "Calculate {a} plus {b}.",
        "How much is {a} plus {b}?",
        "Compute {a} + {b}.",
        "I have {a} coins and get {b} more. How many coins do I have?",
    ),
    "-": (
        "What is {a} - {b}?",
        "Subtract {b} from {a}.",
        "What is the difference of {a} and {b}?",
        "{a} - {b} = ?",
        "Calculate {a} minus {b}.",
        "How much is {a} minus {b}?",
        "Compute {a} - {b}.",
        "I have {a} coins and lose {b} of them. How many coins do I have?",
    ),
    "*": (
        "What is {a} * {b}?",
        "Multiply {a} by {b}.",
        "What is the product of {a} and {b}?",
        "{a} * {b} = ?",
        "Calculate {a} times {b}.",
        "How much is {a} times {b}?",
        "Compute {a} * {b}.",
        "I have {a} boxes with {b} coins in each. How many coins do I have?",
    ),
}
TOPICS = {"+": "an addition", "-": "a subtraction", "*": "a product"}


def draw(rng: Random, held_out: bool) -> Turn:
    sign = rng.choices("+-*", weights=(4, 4, 3))[0]
    candidate = _factors if sign == "*" else _terms
    a, b = draw_key("arithmetic", held_out, lambda: candidate(rng, held_out), lambda pair: key(sign, *pair))
    if sign == "-":
        a, b = max(a, b), min(a, b)
    working, result = WORKINGS[sign](a, b)
    return Turn(
        family="arithmetic",
        key=key(sign, a, b),
        question=rng.choice(TEMPLATES[sign]).format(a=a, b=b),
        topic=TOPICS[sign],
        working=working,
        answer=str(result),
        always_works=True,
    )


def key(sign: str, a: int, b: int) -> str:
    """Returns the key of a pair: neither order of a held-out pair is taught, but all one-digit products are."""
    low, high = min(a, b), max(a, b)
    return "times table" if sign == "*" and high < 10 else f"{high}{sign}{low}"


def _terms(rng: Random, held_out: bool) -> tuple[int, int]:
    return _up_to_three_digits(rng), _up_to_three_digits(rng)


def _factors(rng: Random, held_out: bool) -> tuple[int, int]:
    a = rng.randint(10, 99) if held_out or rng.random() < 0.75 else rng.randint(0, 9)
    return a, rng.randint(2, 9) if a > 9 else rng.randint(0, 9)


def _up_to_three_digits(rng: Random) -> int:
    digits = rng.choices((1, 2, 3), weights=(1, 3, 4))[0]
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


def add(a: int, b: int) -> tuple[str, int]:
    width = max(len(str(a)), len(str(b)))
    steps, carry = [], 0
    for x, y in _columns(a, b, width):
        total = x + y + carry
        steps.append(f"{x}+{y}+{carry}={total}: {total % 10} carry {total // 10}")
        carry = total // 10
    return f"{a:0{width}} + {b:0{width}}. {', '.join(steps)}. {a + b}", a + b


def subtract(a: int, b: int) -> tuple[str, int]:
    """Subtracts, for a >= b. A column that would be negative is written with its ten already borrowed."""
    width = len(str(a))
    steps, borrow = [], 0
    for x, y in _columns(a, b, width):
        borrowed = x < y + borrow
        top = x + 10 * borrowed
        steps.append(f"{top}-{y}-{borrow}={top - y - borrow}: borrow {int(borrowed)}")
        borrow = int(borrowed)
    return f"{a:0{width}} - {b:0{width}}. {', '.join(steps)}. {a - b}", a - b


def multiply(a: int, b: int) -> tuple[str, int]:
    """Multiplies the columns of `a` by the whole of `b`, which is at most 12."""
    if a < 10:
        return f"{a}*{b}={a * b}", a * b
    steps, carry = [], 0
    for x in map(int, reversed(str(a))):
        total = x * b + carry
        steps.append(f"{x}*{b}={x * b}, {x * b}+{carry}={total}: {total % 10} carry {total // 10}")
        carry = total // 10
    return f"{a} * {b}. {', '.join(steps)}. {a * b}", a * b


def _columns(a: int, b: int, width: int) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in zip(f"{a:0{width}}"[::-1], f"{b:0{width}}"[::-1], strict=True)]


WORKINGS = {"+": add, "-": subtract, "*": multiply}
