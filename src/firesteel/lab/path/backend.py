"""Which kernels an engine used, from what it says and what a profiler saw, held to rules in files; runs nothing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.kernels.op.requirement import VERDICTS, Requirement, list_requirements

RULES = Path(__file__).parent / "rules"
SHOWN = 3  # lines of evidence a sign
LONGEST = 300  # characters of one: vLLM writes its whole configuration into a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A backend, by what it leaves in a log, among a profile's kernels or in the ledger."""

    name: str
    about: str = ""
    log: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    ledger: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRule:
    """Signs that must and must not be seen."""

    name: str = ""
    device: str = ""  # "cpu" or "gpu": where it holds; empty is anywhere
    since: tuple[int, ...] = ()  # the compute capability from which it holds; empty is any
    must: tuple[str, ...] = ()  # "a|b" is either
    must_not: tuple[str, ...] = ()

    def holds(self, device: str, capability: tuple[int, int] | None) -> bool:
        is_new_enough = not self.since or (capability is not None and capability >= self.since)
        return self.device in ("", device) and is_new_enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    engine: str
    packages: tuple[str, ...]
    signs: tuple[Sign, ...]
    paths: tuple[PathRule, ...]

    @classmethod
    def load(cls, path: Path) -> Rules:
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
            rules = cls(
                engine=content["engine"], packages=tuple(content["packages"]),
                signs=tuple(Sign(**_tuples(one)) for one in content["sign"]),
                paths=tuple(PathRule(**_tuples(one)) for one in content["path"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path.name} holds no rules: {error}") from error
        rules.check(path.name)
        return rules

    def check(self, file: str) -> None:
        """That every path speaks of signs that exist, and every pattern is one."""
        known = {sign.name for sign in self.signs}
        for path in self.paths:
            for name in (*(one for words in path.must for one in words.split("|")), *path.must_not):
                if name not in known:
                    raise UserError(f"{file}: the path {path.name or 'without a name'} speaks of {name}, no sign")
        for sign in self.signs:
            for pattern in (*sign.log, *sign.kernels, *sign.ledger):
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise UserError(f"{file}: {sign.name}: {pattern!r}: {error}") from error

    def find_path(self, name: str, device: str, capability: tuple[int, int] | None = None) -> PathRule:
        """The first of this name that holds there."""
        for path in self.paths:
            if path.name == name and path.holds(device, capability):
                return path
        names = ", ".join(path.name for path in self.paths if path.name)
        raise UserError(f"there is no path {name!r} for {self.engine}; its rules have {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a run; parts that are not known are empty."""

    log: Sequence[str] = ()
    kernels: Mapping[str, int] | None = None  # launches by name, of a profile
    ledger: Mapping[str, Any] | None = None  # as /ledger gives it
    machine: DeviceSpec | None = None  # what the engine could have used; None of a machine that is not known

    @property
    def device(self) -> str:
        """ "cpu", "gpu" or, where nothing says so, nothing. A ledger knows what was used."""
        if self.ledger is not None:
            return "cpu" if self.ledger["device"] == "CPU" else "gpu"
        if self.machine is None:
            return ""
        return "gpu" if self.machine.is_cuda else "cpu"

    @property
    def capability(self) -> tuple[int, int] | None:
        return None if self.machine is None else self.machine.capability

    def ledger_lines(self) -> list[str]:
        rows = [] if self.ledger is None else self.ledger["ran"]
        return [" ".join(filter(None, _words(row))) for row in rows]


def _words(row: Mapping[str, Any]) -> list[str]:
    proofs = [f"@{one}" for one in sorted(verdicts_of(row))]
    return [f"{row['op']}={row['implementation']}", row.get("activation", ""), *proofs]


def verdicts_of(row: Mapping[str, Any]) -> set[str]:
    """What the matrix instructions in a row's machine code are; of kernels that have none, nothing."""
    found = {code["verdict"] for code in row.get("artefacts") or ()}
    return found & set(VERDICTS) - {"none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was seen, and what of it was wrong."""

    engine: str
    path: PathRule
    seen: Mapping[str, tuple[str, ...]]  # sign -> lines that show it
    about: Mapping[str, str]
    faults: tuple[str, ...]
    ledger: Mapping[str, Any] | None
    kernels: Mapping[str, int] | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(rules: Rules, evidence: Evidence, *, path: str = "", require: str = "") -> Summary:
    seen = {sign.name: lines for sign in rules.signs if (lines := find_sign(sign, evidence))}
    rule = rules.find_path(path, evidence.device, evidence.capability)
    faults = [*judge(rule, seen), *judge_requirements(require, evidence)]
    if not seen:
        faults.append(f"nothing says which kernels {rules.engine} used; a profile (--trace) would")
    return Summary(
        engine=rules.engine, path=rule, seen=seen, faults=tuple(faults), ledger=evidence.ledger,
        about={sign.name: sign.about for sign in rules.signs if sign.name in seen}, kernels=evidence.kernels,
    )  # fmt: skip


def judge(rule: PathRule, seen: Mapping[str, tuple[str, ...]]) -> list[str]:
    missing = [words for words in rule.must if not set(words.split("|")) & set(seen)]
    faults = [f"{words.replace('|', ' or ')} did not run" for words in missing]
    return faults + [f"{name} ran: {seen[name][0]}" for name in rule.must_not if name in seen]


def judge_requirements(require: str, evidence: Evidence) -> list[str]:
    """What --require names must have run, and nothing else of that op."""
    if not require:
        return []
    if evidence.ledger is None:
        return [f"--require {require}: the server has no ledger to check it with"]
    rows = evidence.ledger["ran"]
    faults = {
        wanted: judge_one(wanted, [row for row in rows if row["op"] == wanted.op])
        for wanted in list_requirements(require)
    }
    return [f"{wanted} was asked for, {words}" for wanted, words in faults.items() if words]


def judge_one(wanted: Requirement, ran: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with the rows of its op, in words; empty if nothing is."""
    others = sorted({row["implementation"] for row in ran if not wanted.names(row["implementation"])})
    found = set().union(*map(verdicts_of, ran))
    if others:
        return f"{', '.join(others)} ran"
    if not ran:
        return f"{wanted.op} did not run"
    if wanted.verdict is None or found | {"none"} == {wanted.verdict, "none"}:
        return ""
    return f"the matrix instructions of its machine code are {', '.join(sorted(found)) or 'none'}"


def find_sign(sign: Sign, evidence: Evidence) -> tuple[str, ...]:
    """The first lines that show it."""
    kernels = [f"{name} ({count} launches)" for name, count in (evidence.kernels or {}).items()]
    sources = ((sign.log, evidence.log), (sign.kernels, kernels), (sign.ledger, evidence.ledger_lines()))
    return tuple(line for patterns, lines in sources for line in _matching(patterns, lines))[:SHOWN]


def _matching(patterns: Sequence[str], lines: Iterable[str]) -> list[str]:
    if not patterns:
        return []
    search = re.compile("|".join(f"(?:{one})" for one in patterns)).search
    return list(dict.fromkeys(_around(found) for line in lines if (found := search(line.strip()))))


def _around(found: re.Match[str]) -> str:
    """Its line or, of a long one, the part in which it stands."""
    line, first = found.string, max(0, found.start() - LONGEST // 2)
    return line if len(line) <= LONGEST else f"... {line[first : first + LONGEST]} ..."


def load_rules(kind: str, folder: Path = RULES) -> Rules | None:
    """None for an engine that has none."""
    path = folder / f"{kind}.toml"
    return Rules.load(path) if path.is_file() else None


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
