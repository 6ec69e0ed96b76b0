"""Notes: filler with a few stated values, for questions about them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kindling.split import draw_key, is_held_out
from kindling.words import ADJECTIVES, FIRST_NAMES, PLACES, THINGS, number, sentence

NUMERIC = ("code", "price", "number", "weight")
NAMED = ("owner", "place")
ATTRIBUTES = NUMERIC + NAMED
SUBJECTS = tuple(f"{adjective} {thing}" for adjective in ADJECTIVES for thing in THINGS)
INTRODUCTIONS = (
    "Read these notes.",
    "Here is a text.",
    "Use the text below.",
    "These are my notes.",
    "Here are some notes to remember.",
    "Read the text and answer the question.",
)
QUESTIONS = (
    "What is the {attribute} of the {subject}?",
    "Tell me the {attribute} of the {subject}.",
    "Which {attribute} does the {subject} have?",
    "Find the {attribute} of the {subject}.",
    "Look up the {attribute} of the {subject}.",
    "I need the {attribute} of the {subject}.",
    "What does the text say about the {attribute} of the {subject}?",
    "Please give me the {attribute} of the {subject}.",
)


@dataclass(frozen=True, slots=True)
class Fact:
    attribute: str
    subject: str
    value: str

    @property
    def sentence(self) -> str:
        return f"The {self.attribute} of the {self.subject} is {self.value}."

    @property
    def absence(self) -> str:
        return f"The {self.attribute} of the {self.subject} is not given."

    @property
    def record(self) -> str:
        return f"{self.subject}, {self.attribute}: {self.value}"

    def question(self, rng: Random) -> str:
        return rng.choice(QUESTIONS).format(attribute=self.attribute, subject=self.subject)


def draw_fact(rng: Random, held_out: bool) -> Fact:
    subject = draw_key("subject", held_out, lambda: rng.choice(SUBJECTS), str)
    attribute = rng.choice(ATTRIBUTES)
    return Fact(attribute, subject, _value(rng, attribute, held_out))


def _value(rng: Random, attribute: str, held_out: bool) -> str:
    if attribute == "owner":
        return rng.choice(FIRST_NAMES)
    if attribute == "place":
        return f"the {rng.choice(PLACES)}"
    return number(rng, held_out, rng.choice((3, 4)))


def near_misses(rng: Random, fact: Fact, count: int) -> list[Fact]:
    """Draws taught facts that share a word with `fact` but do not answer its question."""
    adjective, thing = fact.subject.split(" ")
    misses = []
    for _ in range(count):
        other = draw_fact(rng, held_out=False)
        form = rng.randrange(3)
        subject = f"{adjective} {rng.choice(THINGS)}" if form == 0 else f"{rng.choice(ADJECTIVES)} {thing}"
        if form < 2 and subject != fact.subject and not is_held_out("subject", subject):
            other = Fact(fact.attribute, subject, _value(rng, fact.attribute, False))
        if (other.subject, other.attribute) != (fact.subject, fact.attribute):
            misses.append(other)
    return misses


def write_notes(rng: Random, facts: list[Fact], sentences: int) -> str:
    """Returns the facts at random places among `sentences` of filler."""
    lines = [sentence(rng) for _ in range(sentences)]
    for fact in facts:
        lines.insert(rng.randint(0, len(lines)), fact.sentence)
    return " ".join(lines)


def write_records(rng: Random, facts: list[Fact]) -> str:
    return "\n".join(fact.record for fact in rng.sample(facts, len(facts)))


def distinct(facts: list[Fact]) -> list[Fact]:
    """Keeps the first fact of each attribute and subject, so that no text contradicts itself."""
    return list({(f.attribute, f.subject): f for f in reversed(facts)}.values())[::-1]
