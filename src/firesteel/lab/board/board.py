"""The board: results in sections that can be compared, ranked by the speed of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.lab.board.collect import Collection, collect_results
from firesteel.lab.board.entry import BoardEntry
from firesteel.lab.board.targets import PublishedEngine, Targets, TargetVerdict, conclude_targets
from firesteel.lab.verdict import Verdict, conclude


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedEntry:
    entry: BoardEntry
    rank: int  # from 1; equal speeds share it
    was_best: bool  # faster than all ranked entries before it
    targets: tuple[TargetVerdict, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        targets = [verdict.as_dict() for verdict in self.targets]
        return {**self.entry.as_dict(), "rank": self.rank, "was_best": self.was_best, "targets": targets}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSection:
    """The results of one model on one device with one headline workload."""

    model: str
    device: str
    workload: str
    ranked: tuple[RankedEntry, ...]
    published: tuple[PublishedEngine, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.model} on {self.device}, {self.workload}"

    @property
    def best(self) -> RankedEntry:
        return self.ranked[0]

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "device": self.device,
            "workload": self.workload,
            "ranked": [entry.as_dict() for entry in self.ranked],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    sections: tuple[BoardSection, ...]
    unranked: tuple[BoardEntry, ...]
    unreadable: dict[str, str]
    without_speed: tuple[str, ...]
    has_targets: bool = False

    @property
    def verdict(self) -> Verdict:
        """The verdict on the targets by the best configuration of each section; without targets, by having any."""
        if not self.has_targets:
            return Verdict.PASSED if self.sections else Verdict.UNPROVEN
        judged = [list(section.best.targets) for section in self.sections if section.best.targets]
        return conclude(map(conclude_targets, judged), needs_all=True)

    def in_words(self) -> str:
        ranked = sum(len(section.ranked) for section in self.sections)
        parts = [f"{ranked} ranked", f"{len(self.unranked)} not ranked", f"{len(self.unreadable)} not readable"]
        return ", ".join(part for part in parts if not part.startswith("0 ")) or "no results"

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value,
            "sections": [section.as_dict() for section in self.sections],
            "unranked": [entry.as_dict() for entry in self.unranked],
            "unreadable": self.unreadable,
            "without_speed": list(self.without_speed),
        }


def make_board(folders: Sequence[Path], targets: Targets | None = None) -> Board:
    return arrange(collect_results(folders), targets)


def arrange(found: Collection, targets: Targets | None = None) -> Board:
    groups: dict[tuple[str, str, str], list[BoardEntry]] = {}
    for entry in found.entries:
        if entry.is_ranked:
            groups.setdefault((entry.model, entry.device, entry.workload), []).append(entry)
    sections = [make_section(*key, entries, targets) for key, entries in groups.items()]
    return Board(
        sections=tuple(sorted(sections, key=lambda section: (section.model, section.device, section.workload))),
        unranked=tuple(entry for entry in found.entries if not entry.is_ranked),
        unreadable=found.unreadable,
        without_speed=tuple(found.without_speed),
        has_targets=targets is not None,
    )


def make_section(
    model: str, device: str, workload: str, entries: Sequence[BoardEntry], targets: Targets | None
) -> BoardSection:
    applied = targets if targets is not None and targets.apply_to(model, device) else Targets()
    records = find_records(entries)
    ranked = [
        RankedEntry(
            entry=entry,
            rank=1 + sum(other.speed > entry.speed for other in entries),
            was_best=entry.path in records,
            targets=tuple(applied.judge(entry)),
        )
        for entry in sorted(entries, key=lambda entry: -entry.speed)
    ]
    return BoardSection(
        model=model, device=device, workload=workload, ranked=tuple(ranked), published=applied.engine
    )


def find_records(entries: Sequence[BoardEntry]) -> list[str]:
    """Returns the paths of entries that were the best when they were measured."""
    records: list[BoardEntry] = []
    for entry in sorted(entries, key=lambda entry: entry.time_utc or ""):
        if not records or entry.speed > records[-1].speed:
            records.append(entry)
    return [entry.path for entry in records]
