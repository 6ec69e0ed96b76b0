"""The result of a level: its verdict, checks and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from firesteel.lab.bench.result import BenchResult
from firesteel.lab.codec import from_json, to_json
from firesteel.lab.compare.compare import Comparison
from firesteel.lab.level import KERNEL_PATH, Level, find_level
from firesteel.lab.matrix.result import MatrixResult
from firesteel.lab.path.backend import BackendSummary
from firesteel.lab.servers.diagnosis import Diagnosis

# Figures that have a field of their own in LevelResult.
TYPED_FIGURES = ("checks", "backend", "bench", "comparison", "matrix", "diagnosis", "bundle")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCheck:
    """One thing that a level looked at."""

    check: str
    passed: bool
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    level: Level
    passed: bool
    reason: str  # also of a pass
    valid: bool = True  # False if the kernel path was not the requested one
    was_run: bool = True  # False if there was nothing to compare with, or no server left
    seconds: float = 0.0
    checks: tuple[LevelCheck, ...] = ()
    backend: BackendSummary | None = None
    bench: BenchResult | None = None
    comparison: Comparison | None = None
    matrix: MatrixResult | None = None
    diagnosis: Diagnosis | None = None  # of a server that failed
    bundle: str | None = None  # its crash bundle
    facts: Mapping[str, Any] = field(default_factory=dict)  # other figures; the report shows them as they are

    @property
    def is_new_baseline(self) -> bool:
        """True if there was no earlier run to compare with, so that this one was kept."""
        return "visible_change" in self.facts

    def figures(self) -> dict[str, Any]:
        """Returns everything but the verdict as JSON."""
        content = dict(self.facts)
        if self.diagnosis is not None:
            content |= {"diagnosis": self.diagnosis.as_dict(), "bundle": self.bundle}
        for name in ("backend", "bench", "comparison", "matrix"):
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
            "passed": self.passed,
            "reason": self.reason,
            "valid": self.valid,
            "was_run": self.was_run,
            "seconds": self.seconds,
            "figures": self.figures(),
        }


class Checks:
    """Collects what a level looked at and builds its result."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.rows: list[LevelCheck] = []
        self.facts: dict[str, Any] = {}

    def add(self, name: str, passed: bool, words: str) -> None:
        self.rows.append(LevelCheck(check=name, passed=passed, words=words))

    def result(
        self,
        summary: str = "",
        *,
        backend: BackendSummary | None = None,
        bench: BenchResult | None = None,
        comparison: Comparison | None = None,
        matrix: MatrixResult | None = None,
    ) -> LevelResult:
        """Builds the result; its reason is what failed, else the summary, else all checks."""
        failed = [f"{row.check}: {row.words}" for row in self.rows if not row.passed]
        return LevelResult(
            level=self.level,
            passed=not failed,
            reason="; ".join(failed) or summary or "; ".join(row.words for row in self.rows),
            checks=tuple(self.rows),
            facts=self.facts,
            backend=backend,
            bench=bench,
            comparison=comparison,
            matrix=matrix,
        )


def judge_validity(results: Sequence[LevelResult]) -> list[LevelResult]:
    """Marks results after a failed kernel path as invalid: another path was measured than the requested one."""
    is_valid = True
    judged = []
    for result in results:
        judged.append(result if is_valid else replace(result, valid=False))
        is_valid = is_valid and not (result.level == KERNEL_PATH and result.was_run and not result.passed)
    return judged


def has_passed(results: Sequence[LevelResult]) -> bool:
    return all(result.passed and result.valid for result in results)


def parse_level(content: Mapping[str, Any]) -> LevelResult:
    figures = dict(content.get("figures") or {})
    return LevelResult(
        level=find_level(str(content.get("level"))),
        passed=bool(content.get("passed")),
        reason=str(content.get("reason", "")),
        valid=bool(content.get("valid", True)),
        was_run=bool(content.get("was_run", True)),
        seconds=content.get("seconds") or 0.0,
        checks=from_json(tuple[LevelCheck, ...], figures.get("checks") or (), "the checks of a level"),
        backend=parse_part(BackendSummary, figures, "backend"),
        bench=parse_part(BenchResult, figures, "bench"),
        comparison=parse_part(Comparison, figures, "comparison"),
        matrix=parse_part(MatrixResult, figures, "matrix"),
        diagnosis=parse_part(Diagnosis, figures, "diagnosis"),
        bundle=figures.get("bundle"),
        facts={name: value for name, value in figures.items() if name not in TYPED_FIGURES},
    )


def parse_part(kind: type[T], content: Mapping[str, Any], name: str) -> T | None:
    """Returns None if the part is missing or empty."""
    return from_json(kind, content[name], f"{name} of the result") if content.get(name) else None
