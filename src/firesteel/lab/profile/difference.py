"""The difference of two profiles, by category and by kernel, per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from firesteel.lab.profile.profile import Profile

NamedTime = tuple[str, str, float]  # name, category, ms per step


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChange:
    name: str
    category: str
    before_ms: float  # per step; 0 if it did not run
    after_ms: float

    @property
    def change_ms(self) -> float:
        return self.after_ms - self.before_ms

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "change_ms": self.change_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDifference:
    before: str  # sources
    after: str
    step: TimeChange
    categories: tuple[TimeChange, ...]  # the largest change first, as kernels
    kernels: tuple[TimeChange, ...]

    def in_words(self) -> str:
        step = self.step
        share = f" ({step.change_ms / step.before_ms:+.1%})" if step.before_ms else ""
        words = f"a step takes {step.after_ms:.3f} ms, before {step.before_ms:.3f} ms{share}"
        largest = self.categories[0]
        return f"{words}; the largest change is in {largest.name}: {largest.change_ms:+.3f} ms"

    def as_dict(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "step": self.step.as_dict(),
            "categories": [row.as_dict() for row in self.categories],
            "kernels": [row.as_dict() for row in self.kernels],
            "words": self.in_words(),
        }


def compute_difference(before: Profile, after: Profile) -> ProfileDifference:
    categories = [
        [(row.category, row.category, row.ms) for row in profile.categories] for profile in (before, after)
    ]
    kernels = [[(row.name, row.category, row.ms) for row in profile.kernels] for profile in (before, after)]
    return ProfileDifference(
        before=before.source,
        after=after.source,
        step=TimeChange(name="step", category="", before_ms=before.step_ms, after_ms=after.step_ms),
        categories=_changes(categories[0], categories[1]),
        kernels=_changes(kernels[0], kernels[1]),
    )


def _changes(before: Sequence[NamedTime], after: Sequence[NamedTime]) -> tuple[TimeChange, ...]:
    category_of = {name: category for name, category, _ in (*before, *after)}
    old, new = ({name: ms for name, _, ms in rows} for rows in (before, after))
    rows = [
        TimeChange(name=name, category=category, before_ms=old.get(name, 0.0), after_ms=new.get(name, 0.0))
        for name, category in category_of.items()
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.change_ms)))
