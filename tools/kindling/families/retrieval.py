"""Questions at the end of a long text for a value stated once in it, beyond the sliding window."""

from __future__ import annotations

from random import Random

from kindling.notes import INTRODUCTIONS, Fact, distinct, draw_fact, near_misses, write_notes, write_records
from kindling.turn import Turn

TOKENS_PER_SENTENCE = 9.2
TOKENS_PER_RECORD = 8.5
RECORDS_SHARE = 0.3


def draw(rng: Random, held_out: bool) -> Turn:
    """Draws texts of about 150 to 1200 tokens, shorter ones more often."""
    return draw_sized(rng, held_out, int(130 * 8 ** rng.random() ** 2))


def draw_long(rng: Random, held_out: bool) -> Turn:
    return draw_sized(rng, held_out, rng.randint(2000, 3900), family="retrieval_long")


def draw_sized(rng: Random, held_out: bool, tokens: int, family: str = "retrieval") -> Turn:
    fact = draw_fact(rng, held_out)
    return ask(rng, fact, write_text(rng, [fact], tokens), family)


def draw_several(rng: Random, tokens: int, count: int) -> list[Turn]:
    """Draws taught questions on one text: the first turn has the text, the others only ask."""
    facts = distinct([draw_fact(rng, held_out=False) for _ in range(count)])
    text = write_text(rng, facts, tokens)
    return [ask(rng, fact, text if index == 0 else None, "retrieval") for index, fact in enumerate(facts)]


def write_text(rng: Random, facts: list[Fact], tokens: int) -> str:
    if rng.random() < RECORDS_SHARE:
        others = [draw_fact(rng, held_out=False) for _ in range(int(tokens / TOKENS_PER_RECORD))]
        return write_records(rng, distinct([*facts, *near_misses(rng, facts[0], 2), *others]))
    stated = distinct([*facts, *near_misses(rng, facts[0], 2 + tokens // 200)])
    return write_notes(rng, stated, int(tokens / TOKENS_PER_SENTENCE) - len(stated))


def ask(rng: Random, fact: Fact, text: str | None, family: str, *, is_given: bool = True) -> Turn:
    question = fact.question(rng)
    answer = fact.sentence if is_given else fact.absence
    return Turn(
        family=family,
        key=f"{fact.attribute} of {fact.subject}",
        question=f"{rng.choice(INTRODUCTIONS)}\n\n{text}\n\n{question}" if text else question,
        topic="a value in the text",
        working=f"I look for the {fact.attribute} of the {fact.subject} in the text.",
        answer=answer,
    )
