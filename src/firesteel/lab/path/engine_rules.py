"""The rules of an engine, `rules/ENGINE.toml`: signs that show a slot's value, paths, and cures."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.path.expectation import Expectation, Expectations, check_names, parse_expectations
from firesteel.lab.path.slots import SINKS, SLOTS

RULES = Path(__file__).parent / "rules"
NONE = "none"  # value of a slot that the model or the device does not have
UNSEEN = "unseen"  # among cures: how to make a slot visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A value of a slot, recognised by lines of a log, kernels of a profile, a ledger, variables or flags.

    Patterns of logs and ledgers begin at the start of the message, those of kernels and command lines may match
    anywhere, and those of the environment match a whole NAME=VALUE.
    """

    slot: str  # "a|b": one of these, whichever no other sign explains
    value: str = ""  # empty: the group `value` of the pattern, in lower case
    values: tuple[str, ...] = ()  # families that the group can have
    prefix: str = ""  # before the group
    is_weak: bool = False  # True: counts only if nothing else shows the slot
    about: str = ""
    log: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    ledger: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(self.slot.split("|"))

    @property
    def patterns(self) -> tuple[str, ...]:
        return (*self.log, *self.kernels, *self.ledger, *self.environment, *self.command)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRule:
    """A set of expectations; without a name, what is expected if none is requested."""

    name: str = ""
    device: str = ""  # "cpu" or "gpu"; empty: both
    since: tuple[int, ...] = ()  # the lowest compute capability; empty: any
    expect: Mapping[str, str] = field(default_factory=dict)  # must have been seen
    guard: Mapping[str, str] = field(default_factory=dict)  # must hold if it was seen

    def applies(self, device: str, capability: tuple[int, int] | None) -> bool:
        is_new_enough = not self.since or (capability is not None and capability >= self.since)
        return self.device in ("", device) and is_new_enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrade:
    """A value that means another one on GPUs from `since` on while a package is older than `below`."""

    slot: str
    value: str
    to: str
    since: tuple[int, ...]
    package: str
    below: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    engine: str
    packages: tuple[str, ...] = ()  # that its process must be able to import
    optional_packages: tuple[str, ...] = ()  # whose place and version are reported
    # patterns that only this engine writes: "log" from the start of a message, "kernels" anywhere in a name
    recognised_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    signs: tuple[Sign, ...] = ()
    paths: tuple[PathRule, ...] = ()
    downgrades: tuple[Downgrade, ...] = ()
    # slot -> value -> what gives it; "!value": what gives another one; "": the usual cure; UNSEEN: what shows it
    cures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> EngineRules:
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
            other = content.get("signs_of")  # an engine whose signs are known here too
            rules = cls(
                engine=content["engine"],
                packages=tuple(content["packages"]),
                optional_packages=tuple(content.get("optional_packages", ())),
                recognised_by=_tuples(content.get("recognised_by", {})),
                signs=(
                    *(cls.load(path.with_name(f"{other}.toml")).signs if other else ()),
                    *(Sign(**_tuples(table)) for table in content["sign"]),
                ),
                paths=tuple(PathRule(**_tuples(table)) for table in content["path"]),
                downgrades=tuple(Downgrade(**_tuples(table)) for table in content.get("downgrade", ())),
                cures=content.get("cures", {}),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path.name} is not a file of rules: {error}") from error
        rules.check(path.name)
        return rules

    @property
    def values(self) -> dict[str, set[str]]:
        """Every value that a sign can show, by slot."""
        found: dict[str, set[str]] = {slot: set() for slot in SLOTS}
        found[SINKS] |= {"on", "off"}  # answers show them too, where no sign does
        for sign in self.signs:
            for slot in sign.slots:
                found[slot] |= {sign.value, *sign.values} - {"", NONE}
        for downgrade in self.downgrades:
            found[downgrade.slot].add(downgrade.to)
        return found

    def check(self, file: str) -> None:
        """Raises unless every slot and value exists and every pattern is valid."""
        for name in [slot for sign in self.signs for slot in sign.slots] + list(self.cures):
            if name not in SLOTS:
                raise UserError(f"{file}: {name!r} is not a slot; slots are {', '.join(SLOTS)}")
        for sign in self.signs:
            for pattern in sign.patterns:
                try:
                    groups = re.compile(pattern).groupindex
                except re.error as error:
                    raise UserError(f"{file}: {sign.slot}={sign.value}: {pattern!r}: {error}") from error
                if not sign.value and "value" not in groups:
                    raise UserError(
                        f"{file}: {pattern!r} of {sign.slot} shows no value: name one, or a group `value`"
                    )
        for path in self.paths:
            where = f"{file}: the path {path.name or 'without a name'}"
            check_names({**_parse(path.expect), **_parse(path.guard)}, self.values, where)

    def find_path(self, name: str, device: str, capability: tuple[int, int] | None = None) -> PathRule:
        """Returns the first path of this name that applies to the device."""
        for path in self.paths:
            if path.name == name and path.applies(device, capability):
                return path
        names = ", ".join(dict.fromkeys(path.name for path in self.paths if path.name))
        raise UserError(f"there is no path {name!r} for {self.engine}; its rules have {names or 'none'}")

    def find_expectations(
        self, device: str, capability: tuple[int, int] | None = None, *, path: str = "", expect: str = ""
    ) -> Expectations:
        """Returns what the slots of a server on this device must show.

        The path without a name applies to all slots; a named path and --expect replace its expectations, and then
        only slots that these name must have been seen.
        """
        usual = self.find_path("", device, capability)
        named = self.find_path(path, device, capability) if path else None
        given = parse_expectations(expect)
        check_names(given, self.values, "--expect")
        wanted = {**(_parse(named.expect) if named else {}), **given}
        return Expectations(
            path=path,
            by_slot={
                **_parse(usual.guard),
                **_parse(usual.expect),
                **(_parse(named.guard) if named else {}),
                **wanted,
            },
            required=frozenset(wanted or usual.expect),
            is_explicit=bool(wanted),
        )

    def find_cure(self, slot: str, names: Iterable[str]) -> str:
        """Returns the first cure among these values of a slot."""
        cures = self.cures.get(slot, {})
        return next((cures[name] for name in names if name in cures), "")


def load_rules(kind: str, folder: Path = RULES) -> EngineRules | None:
    """Returns None for an engine without rules."""
    path = folder / f"{kind}.toml"
    return EngineRules.load(path) if path.is_file() else None


def _parse(table: Mapping[str, str]) -> dict[str, Expectation]:
    return {slot: Expectation.parse(text) for slot, text in table.items()}


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
