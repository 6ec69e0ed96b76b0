"""Fact families: every (fact, template) pair, each on one side of the split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from kindling.split import is_held_out
from kindling.turn import Turn
from kindling.words import capitalise


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Facts of one kind and the templates of questions; all texts are format strings over the fields of a fact."""

    name: str
    topic: str
    subject: str  # identifies the fact within the relation
    templates: tuple[str, ...]
    answer: str
    working: str
    word: str | None = None
    said_elsewhere: frozenset[int] = frozenset()  # templates that other families write, so never held out
    facts: tuple[dict[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pair:
    relation: Relation
    fact: dict[str, str]
    template: int

    @property
    def fact_key(self) -> str:
        return f"{self.relation.name}|{self.relation.subject.format(**self.fact)}"

    @property
    def key(self) -> str:
        is_said = self.template in self.relation.said_elsewhere
        return "said elsewhere" if is_said else f"{self.fact_key}|{self.template}"

    def turn(self, family: str) -> Turn:
        relation, fact = self.relation, self.fact
        word = relation.word.format(**fact) if relation.word else None
        return Turn(
            family=family,
            key=self.key,
            question=capitalise(relation.templates[self.template].format(**fact)),
            topic=relation.topic,
            working=capitalise(relation.working.format(**fact)),
            answer=capitalise(relation.answer.format(**fact)),
            word=capitalise(word) if word and " " not in word else None,
        )


class PairTable:
    """All turns of a fact family."""

    def __init__(self, family: str, relations: tuple[Relation, ...]) -> None:
        self.family = family
        self.pairs = tuple(_pairs(relations))
        self._sides: dict[bool, list[list[Turn]]] = {False: [], True: []}
        for relation in relations:
            turns = [pair.turn(family) for pair in self.pairs if pair.relation is relation]
            for held_out, side in self._sides.items():
                chosen = [turn for turn in turns if is_held_out(family, turn.key) == held_out]
                side.extend([chosen] if chosen else [])

    def draw(self, rng: Random, held_out: bool) -> Turn:
        """Draws a relation first and then a pair of it, so that large relations do not dominate."""
        return rng.choice(rng.choice(self._sides[held_out]))


def _pairs(relations: tuple[Relation, ...]) -> Iterator[Pair]:
    for relation in relations:
        for fact in relation.facts:
            for template in range(len(relation.templates)):
                yield Pair(relation, fact, template)
