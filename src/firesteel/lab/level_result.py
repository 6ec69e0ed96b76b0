"""The result of a level: its verdict, checks and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from firesteel.lab.bench.result import BenchResult
from firesteel.lab.codec import from_json, to_json
from firesteel.lab.compare.compare import Comparison
from firesteel.lab.level import KERNEL_PATH, Level, find_level
from firesteel.lab.matrix.result import MatrixResult
from firesteel.lab.path.ledger import ServerLedger
from firesteel.lab.path.slots import SlotTable
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.verdict import Verdict, conclude, parse_verdict

# Figures that have a field of their own in LevelResult.
TYPED_FIGURES = ("checks", "slots", "ledger", "bench", "comparison", "matrix", "diagnosis", "bundle")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCheck:
    """One thing that a level looked at."""

    check: str
    verdict: Verdict
    words: str
    cure: str = ""  # what would change the verdict: a flag, a variable, a package

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    def in_words(self) -> str:
        """Returns what was found, and the cure unless it passed."""
        return self.words if self.passed or not self.cure else f"{self.words}: {self.cure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    level: Level
    verdict: Verdict
    reason: str  # also of a pass
    valid: bool = True  # False if it was judged although the kernel path was not the requested one
    seconds: float = 0.0
    checks: tuple[LevelCheck, ...] = ()
    slots: SlotTable | None = None  # of the kernel path
    ledger: ServerLedger | None = None
    bench: BenchResult | None = None
    comparison: Comparison | None = None
    matrix: MatrixResult | None = None
    diagnosis: Diagnosis | None = None  # of a server that failed
    bundle: str | None = None  # its crash bundle
    facts: Mapping[str, Any] = field(default_factory=dict)  # other figures; the report shows them as they are

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    @property
    def failed(self) -> bool:
        return self.verdict is Verdict.FAILED

    def figures(self) -> dict[str, Any]:
        """Returns everything but the verdict as JSON."""
        content = dict(self.facts)
        if self.diagnosis is not None:
            content |= {"diagnosis": self.diagnosis.as_dict(), "bundle": self.bundle}
        if self.ledger is not None:
            content["ledger"] = to_json(self.ledger)
        for name in ("slots", "bench", "comparison", "matrix"):
            part = getattr(self, name)
            if part is not None:
                content[name] = part.as_dict()
        if self.checks:
            content["checks"] = to_json(self.checks)
        return content

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.level.title,
            "level": self.level.number,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "valid": self.valid,
            "seconds": self.seconds,
            "figures": self.figures(),
        }


class Checks:
    """Collects what a level looked at and builds its result."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.rows: list[LevelCheck] = []
        self.facts: dict[str, Any] = {}

    def add(self, name: str, verdict: Verdict | bool, words: str, *, cure: str = "") -> None:
        """Adds a check; True means passed, False failed."""
        judged = Verdict.of(verdict) if isinstance(verdict, bool) else verdict
        self.rows.append(LevelCheck(check=name, verdict=judged, words=words, cure=cure))

    def result(
        self,
        summary: str = "",
        *,
        slots: SlotTable | None = None,
        ledger: ServerLedger | None = None,
        bench: BenchResult | None = None,
        comparison: Comparison | None = None,
        matrix: MatrixResult | None = None,
    ) -> LevelResult:
        """Builds the result; its reason is what failed or was not judged, else the summary, else all checks."""
        verdict = conclude((row.verdict for row in self.rows), needs_all=self.level.is_proof)
        return LevelResult(
            level=self.level,
            verdict=verdict,
            reason=self._explain(verdict) or summary or self._join(self.rows),
            checks=tuple(self.rows),
            facts=self.facts,
            slots=slots,
            ledger=ledger,
            bench=bench,
            comparison=comparison,
            matrix=matrix,
        )

    def _explain(self, verdict: Verdict) -> str:
        """Returns why the level did not pass; empty if it did."""
        if verdict is Verdict.FAILED:
            return "; ".join(f"{row.check}: {row.in_words()}" for row in self.rows if row.verdict is verdict)
        if verdict is Verdict.UNPROVEN:
            judged = self._join(row for row in self.rows if row.verdict.is_judged)
            missing = self._join(row for row in self.rows if row.verdict is verdict) or "nothing was checked"
            return f"{verdict.words}: {missing}" + (f" ({judged})" if judged else "")
        return ""

    @staticmethod
    def _join(rows: Iterable[LevelCheck]) -> str:
        return "; ".join(row.in_words() for row in rows)


def judge_validity(results: Sequence[LevelResult]) -> list[LevelResult]:
    """Marks levels judged after a failed kernel path as invalid: they ran on another path than requested."""
    is_valid = True
    judged = []
    for result in results:
        judged.append(replace(result, valid=is_valid or not result.verdict.is_judged))
        is_valid = is_valid and not (result.level == KERNEL_PATH and result.failed)
    return judged


def parse_level(content: Mapping[str, Any]) -> LevelResult:
    figures = dict(content.get("figures") or {})
    return LevelResult(
        level=find_level(str(content.get("level"))),
        verdict=parse_verdict(content),
        reason=str(content.get("reason", "")),
        valid=bool(content.get("valid", True)),
        seconds=content.get("seconds") or 0.0,
        checks=tuple(map(parse_check, figures.get("checks") or ())),
        slots=parse_part(SlotTable, figures, "slots"),
        ledger=parse_part(ServerLedger, figures, "ledger"),
        bench=parse_part(BenchResult, figures, "bench"),
        comparison=parse_part(Comparison, figures, "comparison"),
        matrix=parse_part(MatrixResult, figures, "matrix"),
        diagnosis=parse_part(Diagnosis, figures, "diagnosis"),
        bundle=figures.get("bundle"),
        facts={name: value for name, value in figures.items() if name not in TYPED_FIGURES},
    )


def parse_check(content: Mapping[str, Any]) -> LevelCheck:
    named = {**content, "verdict": parse_verdict(content).value}
    return from_json(LevelCheck, named, "a check of a level")


def parse_part(kind: type[T], content: Mapping[str, Any], name: str) -> T | None:
    """Returns None if the part is missing or empty."""
    return from_json(kind, content[name], f"{name} of the result") if content.get(name) else None
