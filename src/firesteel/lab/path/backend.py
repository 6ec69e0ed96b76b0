"""Finds the kernels that an engine used, by its log, ledger and profile, and judges them by `rules/*.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.kernels.op.requirement import Requirement, list_requirements
from firesteel.lab.path.ledger import NONE, OpCalls, ServerLedger
from firesteel.lab.path.ranks import judge_ranks

RULES = Path(__file__).parent / "rules"
SHOWN = 3  # lines of evidence per sign
MAX_LINE = 300  # characters; vLLM writes its whole configuration on one line


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSign:
    """A backend, recognised by lines of a log, kernels of a profile or lines of the ledger."""

    name: str
    about: str = ""
    log: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    ledger: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRule:
    """The signs that must and must not be seen."""

    name: str = ""
    device: str = ""  # "cpu" or "gpu"; empty: both
    since: tuple[int, ...] = ()  # the lowest compute capability; empty: any
    must: tuple[str, ...] = ()  # "a|b" means either
    must_not: tuple[str, ...] = ()

    def applies(self, device: str, capability: tuple[int, int] | None) -> bool:
        is_new_enough = not self.since or (capability is not None and capability >= self.since)
        return self.device in ("", device) and is_new_enough


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    engine: str
    packages: tuple[str, ...]
    signs: tuple[BackendSign, ...]
    paths: tuple[PathRule, ...]

    @classmethod
    def load(cls, path: Path) -> EngineRules:
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
            other = content.get("signs_of")  # an engine whose signs are known here too
            rules = cls(
                engine=content["engine"],
                packages=tuple(content["packages"]),
                signs=(
                    *(cls.load(path.with_name(f"{other}.toml")).signs if other else ()),
                    *(BackendSign(**_tuples(table)) for table in content["sign"]),
                ),
                paths=tuple(PathRule(**_tuples(table)) for table in content["path"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path.name} is not a file of rules: {error}") from error
        rules.check(path.name)
        return rules

    def check(self, file: str) -> None:
        """Raises unless every path names known signs and every pattern is valid."""
        known = {sign.name for sign in self.signs}
        for path in self.paths:
            for name in (*(name for words in path.must for name in words.split("|")), *path.must_not):
                if name not in known:
                    raise UserError(
                        f"{file}: the path {path.name or 'without a name'} names {name}, which is not a sign"
                    )
        for sign in self.signs:
            for pattern in (*sign.log, *sign.kernels, *sign.ledger):
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise UserError(f"{file}: {sign.name}: {pattern!r}: {error}") from error

    def find_path(self, name: str, device: str, capability: tuple[int, int] | None = None) -> PathRule:
        """Returns the first path of this name that applies to the device."""
        for path in self.paths:
            if path.name == name and path.applies(device, capability):
                return path
        names = ", ".join(path.name for path in self.paths if path.name)
        raise UserError(f"there is no path {name!r} for {self.engine}; its rules have {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEvidence:
    """The known facts of a run; unknown parts are empty."""

    log: Sequence[str] = ()
    kernels: Mapping[str, int] | None = None  # launches per kernel, from a profile
    ledger: ServerLedger | None = None
    machine: DeviceSpec | None = None  # what the engine could have used; None if its machine is unknown

    @property
    def device(self) -> str:
        """The device that was used: "cpu", "gpu" or, if unknown, empty. A ledger states it."""
        if self.ledger is not None:
            return "cpu" if self.ledger.device == "CPU" else "gpu"
        if self.machine is None:
            return ""
        return "gpu" if self.machine.is_cuda else "cpu"

    @property
    def capability(self) -> tuple[int, int] | None:
        return None if self.machine is None else self.machine.capability

    def ledger_lines(self) -> list[str]:
        """Returns lines such as "linear=triton mxfp8 @fp8", which the rules' patterns match."""
        return [" ".join(filter(None, _words(calls))) for calls in (self.ledger.ran if self.ledger else ())]


def _words(calls: OpCalls) -> list[str]:
    proofs = [f"@{verdict}" for verdict in sorted(calls.verdicts)]
    return [f"{calls.op}={calls.implementation}", calls.activation, *proofs]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSummary:
    """The signs that were seen, and the faults."""

    engine: str = ""
    path: PathRule = field(default_factory=PathRule)
    seen: dict[str, tuple[str, ...]] = field(default_factory=dict)  # sign -> lines that show it
    about: dict[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    ledger: ServerLedger | None = None
    kernels: dict[str, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(rules: EngineRules, evidence: PathEvidence, *, path: str = "", require: str = "") -> BackendSummary:
    seen = {sign.name: lines for sign in rules.signs if (lines := find_lines(sign, evidence))}
    rule = rules.find_path(path, evidence.device, evidence.capability)
    faults = [*judge(rule, seen), *judge_requirements(require, evidence), *judge_ranks(evidence.log)]
    if not seen:
        faults.append(f"nothing shows which kernels {rules.engine} used; a profile (--trace) would")
    return BackendSummary(
        engine=rules.engine,
        path=rule,
        seen=seen,
        about={sign.name: sign.about for sign in rules.signs if sign.name in seen},
        faults=tuple(faults),
        ledger=evidence.ledger,
        kernels=None if evidence.kernels is None else dict(evidence.kernels),
    )


def judge(rule: PathRule, seen: Mapping[str, tuple[str, ...]]) -> list[str]:
    missing = [words for words in rule.must if not set(words.split("|")) & set(seen)]
    faults = [f"{words.replace('|', ' or ')} did not run" for words in missing]
    return faults + [f"{name} ran: {seen[name][0]}" for name in rule.must_not if name in seen]


def judge_requirements(require: str, evidence: PathEvidence) -> list[str]:
    """Returns faults: what --require names must have run, and nothing else of that op."""
    if not require:
        return []
    if evidence.ledger is None:
        return [f"--require {require}: the server has no ledger to check it with"]
    faults = {
        wanted: judge_requirement(wanted, [calls for calls in evidence.ledger.ran if calls.op == wanted.op])
        for wanted in list_requirements(require)
    }
    return [f"{wanted} was required, but {words}" for wanted, words in faults.items() if words]


def judge_requirement(wanted: Requirement, ran: Sequence[OpCalls]) -> str:
    """Returns what is wrong with the calls of its op; empty if nothing is."""
    others = sorted({calls.implementation for calls in ran if not wanted.names(calls.implementation)})
    verdicts = set().union(*(calls.verdicts for calls in ran))
    if others:
        return f"{', '.join(others)} ran"
    if not ran:
        return f"{wanted.op} did not run"
    if wanted.verdict is None or verdicts | {NONE} == {wanted.verdict, NONE}:
        return ""
    return f"the matrix instructions of its machine code are {', '.join(sorted(verdicts)) or NONE}"


def find_lines(sign: BackendSign, evidence: PathEvidence) -> tuple[str, ...]:
    """Returns the first lines that show a sign."""
    kernels = [f"{name} ({count} launches)" for name, count in (evidence.kernels or {}).items()]
    sources = ((sign.log, evidence.log), (sign.kernels, kernels), (sign.ledger, evidence.ledger_lines()))
    return tuple(line for patterns, lines in sources for line in _matching(patterns, lines))[:SHOWN]


def _matching(patterns: Sequence[str], lines: Iterable[str]) -> list[str]:
    if not patterns:
        return []
    search = re.compile("|".join(f"(?:{pattern})" for pattern in patterns)).search
    return list(dict.fromkeys(_shorten(match) for line in lines if (match := search(line.strip()))))


def _shorten(match: re.Match[str]) -> str:
    """Returns the line or, if it is long, the part around the match."""
    line, first = match.string, max(0, match.start() - MAX_LINE // 2)
    return line if len(line) <= MAX_LINE else f"... {line[first : first + MAX_LINE]} ..."


def load_rules(kind: str, folder: Path = RULES) -> EngineRules | None:
    """Returns None for an engine without rules."""
    path = folder / f"{kind}.toml"
    return EngineRules.load(path) if path.is_file() else None


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
