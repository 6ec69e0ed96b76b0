"""Expectations of slots: the values that must, may or must not be seen, as --expect and the rules write them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from firesteel.errors import UserError
from firesteel.lab.path.slots import SLOTS

ANY = "any"
VALUE = re.compile(r"!?\(?[\w.:-]+\)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One of `wanted` must be seen, and beside them only `allowed`; or anything but `excluded`."""

    text: str
    wanted: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Expectation:
        """Parses `a|b` (one of these), `a|(b)` (a, and b may run beside it), `!a|b` (neither) and `any`."""
        if text == ANY:
            return cls(text=text)
        names = text.removeprefix("!").split("|")
        if not all(VALUE.fullmatch(name) for name in names):
            raise UserError(f"{text!r} is not an expected value: write a, a|b, !a or any")
        if text.startswith("!"):
            return cls(text=text, excluded=tuple(names))
        beside = tuple(name.strip("()") for name in names if name.startswith("("))
        return cls(text=text, wanted=tuple(name for name in names if not name.startswith("(")), allowed=beside)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.wanted, *self.allowed, *self.excluded)

    def __str__(self) -> str:
        return {ANY: "any value"}.get(self.text, self.text.replace("!", "not ").replace("|", " or "))

    def find_contradiction(self, values: Sequence[str]) -> str | None:
        """Returns the first value that must not be there, or that is there in place of what is wanted."""
        known = (*self.wanted, *self.allowed)
        wrong = [
            value
            for value in values
            if is_named(value, self.excluded) or (self.wanted and not is_named(value, known))
        ]
        if self.wanted and not wrong and not any(is_named(value, self.wanted) for value in values):
            wrong = list(values)
        return wrong[0] if wrong else None


def is_named(value: str, names: Iterable[str]) -> bool:
    """Returns whether a name is the value or its family: `cuda` names `cuda:even`."""
    return any(value == name or value.startswith(f"{name}:") for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    path: str = ""  # the named path they come from
    by_slot: Mapping[str, Expectation] = field(default_factory=dict)
    required: frozenset[str] = frozenset()  # slots that must have been seen
    is_explicit: bool = False  # True: of a named path or --expect, not the usual ones of the device


def parse_expectations(text: str) -> dict[str, Expectation]:
    """Parses `moe=cutlass,dense=marlin`."""
    expected = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        slot, equals, value = part.partition("=")
        if slot not in SLOTS or not equals:
            raise UserError(f"--expect {part}: must be SLOT=VALUE with a slot of {', '.join(SLOTS)}")
        if slot in expected:
            raise UserError(f"--expect names {slot} twice; alternatives are written {slot}=a|b")
        expected[slot] = Expectation.parse(value)
    return expected


def check_names(expected: Mapping[str, Expectation], known: Mapping[str, Collection[str]], where: str) -> None:
    """Raises unless every value can be seen in its slot, by itself or as a family."""
    for slot, expectation in expected.items():
        values = known.get(slot, ())
        for name in expectation.names:
            if not any(is_named(value, (name,)) or is_named(name, (value,)) for value in values):
                listed = ", ".join(sorted(values)) or "none"
                raise UserError(f"{where}: {slot}={name} can never be seen; values of {slot} are {listed}")
