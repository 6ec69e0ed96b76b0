"""Lists: known ones, their neighbours, members of a kind; and the order of a list given in the question."""

from __future__ import annotations

from random import Random

from kindling.facts import CATEGORIES, ORDERED, UNORDERED
from kindling.pairs import PairTable, Relation
from kindling.split import draw_key
from kindling.turn import Turn
from kindling.words import REAL

GIVEN_SHARE = 0.5
LIST_TEMPLATES = (
    "List the {what}.",
    "Name the {what}.",
    "What are the {what}?",
    "Which are the {what}?",
    "Tell me the {what}.",
    "Give me a list of the {what}.",
    "Please list the {what}.",
    "Can you name all the {what}?",
    "Write down the {what}.",
    "I need the {what}.",
)
MEMBER_TEMPLATES = (
    "Name three {kinds}.",
    "List three {kinds}.",
    "Give me three {kinds}.",
    "Tell me three {kinds}.",
    "What are three {kinds}?",
    "Give three examples of {kinds}.",
    "Which three {kinds} do you know?",
    "Please write down three {kinds}.",
)
NEXT_TEMPLATES = (
    "Which {kind} comes after {item}?",
    "What {kind} comes after {item}?",
    "What is the {kind} after {item}?",
    "Name the {kind} that follows {item}.",
    "Which {kind} follows {item}?",
    "Tell me the {kind} after {item}.",
    "After {item}, which {kind} is next?",
    "{item} is a {kind}. Which one is next?",
)
PREVIOUS_TEMPLATES = (
    "Which {kind} comes before {item}?",
    "What {kind} comes before {item}?",
    "What is the {kind} before {item}?",
    "Name the {kind} that precedes {item}.",
    "Which {kind} precedes {item}?",
    "Tell me the {kind} before {item}.",
    "Before {item}, which {kind} was there?",
    "{item} is a {kind}. Which one is just before it?",
)
GIVEN_TEMPLATES = {
    "first": (
        "What is the first item of this list: {items}?",
        "Which item comes first: {items}?",
        "Name the first of these: {items}.",
        "Tell me the first item: {items}.",
    ),
    "last": (
        "What is the last item of this list: {items}?",
        "Which item comes last: {items}?",
        "Name the last of these: {items}.",
        "Tell me the last item: {items}.",
    ),
    "sort": (
        "Sort these words: {items}.",
        "Put these words in alphabetical order: {items}.",
        "Order these words from A to Z: {items}.",
        "Sort alphabetically: {items}.",
    ),
    "count": (
        "How many items are in this list: {items}?",
        "Count these items: {items}.",
        "How many words are here: {items}?",
        "Tell me how many items these are: {items}.",
    ),
}
TOPICS = {"first": "a place in a list", "last": "a place in a list", "sort": "sorting", "count": "counting"}


def _neighbours(step: int) -> tuple[dict[str, str], ...]:
    rows = []
    for kind, (_, items, is_cycle) in ORDERED.items():
        for index, item in enumerate(items):
            if is_cycle or 0 <= index + step < len(items):
                rows.append({"kind": kind, "item": item, "other": items[(index + step) % len(items)]})
    return tuple(rows)


def _neighbour_relation(name: str, step: int, templates: tuple[str, ...]) -> Relation:
    return Relation(
        name=name,
        topic="the order of a list",
        subject="{kind} {item}",
        templates=templates,
        answer="The {kind} " + name + " {item} is {other}.",
        working="{kind} " + name + " {item}: {other}.",
        word="{other}",
        facts=_neighbours(step),
    )


def _list_relation() -> Relation:
    known = {what: items for what, items, _ in ORDERED.values()} | UNORDERED
    return Relation(
        name="list",
        topic="a known list",
        subject="{what}",
        templates=LIST_TEMPLATES,
        answer="{items}.",
        working="The list has {count} items.",
        facts=tuple({"what": w, "items": ", ".join(i), "count": str(len(i))} for w, i in known.items()),
    )


def _member_relation() -> Relation:
    return Relation(
        name="members",
        topic="members of a kind",
        subject="{kinds}",
        templates=MEMBER_TEMPLATES,
        answer="{items}.",
        working="The list needs 3 items.",
        facts=tuple({"kinds": kinds, "items": ", ".join(items[:3])} for kinds, items in CATEGORIES.values()),
    )


TABLE = PairTable(
    "lists",
    (
        _neighbour_relation("after", 1, NEXT_TEMPLATES),
        _neighbour_relation("before", -1, PREVIOUS_TEMPLATES),
        _list_relation(),
        _member_relation(),
    ),
)


def draw(rng: Random, held_out: bool) -> Turn:
    return _given(rng, held_out) if rng.random() < GIVEN_SHARE else TABLE.draw(rng, held_out)


def _given(rng: Random, held_out: bool) -> Turn:
    items = draw_key("lists", held_out, lambda: _items(rng), key)
    task = rng.choice(tuple(GIVEN_TEMPLATES))
    working, answer, word = _solve(task, items)
    return Turn(
        family="lists",
        key=key(items),
        question=rng.choice(GIVEN_TEMPLATES[task]).format(items=", ".join(items)),
        topic=TOPICS[task],
        working=working,
        answer=answer,
        word=word,
        always_works=task in ("sort", "count"),
    )


def key(items: list[str]) -> str:
    """Returns the key of a set of items: no order of a held-out set is taught."""
    return ",".join(sorted(items))


def _items(rng: Random) -> list[str]:
    """Draws three to six words of different first letters, so that sorting compares first letters only."""
    chosen: dict[str, str] = {}
    count = rng.randint(3, 6)
    while len(chosen) < count:
        word = rng.choice(REAL)
        chosen.setdefault(word[0], word)
    return list(chosen.values())


def _solve(task: str, items: list[str]) -> tuple[str, str, str | None]:
    if task == "first":
        return f"first: {items[0]}.", f"The first item is {items[0]}.", items[0]
    if task == "last":
        return f"last: {items[-1]}.", f"The last item is {items[-1]}.", items[-1]
    if task == "count":
        return " ".join(f"{n} {item}" for n, item in enumerate(items, 1)), f"{len(items)} items.", str(len(items))
    letters = [item[0] for item in items]
    return f"{' '.join(letters)} > {' '.join(sorted(letters))}", f"{', '.join(sorted(items))}.", None
