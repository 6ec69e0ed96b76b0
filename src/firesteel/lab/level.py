"""What a level is and what it found; knows no level's checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

TITLES = {
    "1": "smoke",
    "1.5": "kernel path",
    "2": "correctness",
    "3": "stress",
    "4": "benchmark",
    "5": "regression",
    "6": "matrix",
}
MODES = {
    "all": tuple(TITLES),
    "verify": ("1", "1.5", "2"),
    "stress": ("1", "1.5", "3"),
    "benchmark": ("1", "1.5", "4", "5", "6"),
}
SERVERLESS = ("5", "6")  # taken once the server is gone
GATE = "1.5"  # a later result counts only where this one passed


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    level: str
    passed: bool
    reason: str  # in words, also of a pass
    valid: bool = True  # False where the kernel path was not the one asked for
    was_run: bool = True  # False where there was nothing to compare with, or no server left
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return TITLES[self.level]

    def as_dict(self) -> dict[str, Any]:
        return {"title": self.title, **asdict(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LevelResult:
        return cls(**{name: value for name, value in content.items() if name != "title"})


def judge_validity(results: Sequence[LevelResult]) -> list[LevelResult]:
    """Where the kernel path failed, what comes after it was measured on another path than the one asked for."""
    is_open = True
    judged = []
    for result in results:
        judged.append(result if is_open else replace(result, valid=False))
        is_open = is_open and not (result.level == GATE and result.was_run and not result.passed)
    return judged


def has_passed(results: Sequence[LevelResult]) -> bool:
    """All that was run, and validly."""
    return all(result.passed and result.valid for result in results)


class Checks:
    """Gathers what a level looked at and becomes its result."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.figures: dict[str, Any] = {}

    def add(self, name: str, passed: bool, words: str) -> None:
        self.rows.append({"check": name, "passed": passed, "words": words})

    def result(self, level: str, summary: str = "") -> LevelResult:
        """The reason is what failed, or else the summary."""
        failed = [f"{row['check']}: {row['words']}" for row in self.rows if not row["passed"]]
        reason = "; ".join(failed) or summary or "; ".join(row["words"] for row in self.rows)
        return LevelResult(
            level=level, passed=not failed, reason=reason, figures={**self.figures, "checks": self.rows}
        )
