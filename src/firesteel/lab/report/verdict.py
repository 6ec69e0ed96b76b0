"""The verdict at the top of a report, and what a reader must know before any figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.lab.level_result import LevelResult
from firesteel.lab.matrix.review import ACCEPTED, REJECTED
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD
from firesteel.lab.result import LabResult

REVIEW_TONES = {ACCEPTED: GOOD, REJECTED: BAD}


@dataclass(frozen=True, slots=True)
class Verdict:
    words: str
    tone: str
    lines: tuple[str, ...] = ()


def judge(result: LabResult) -> Verdict:
    words, tone = _judge(result)
    return Verdict(words, tone, tuple(list_remarks(result)))


def _judge(result: LabResult) -> tuple[str, str]:
    was_run, failed, invalid = _sort_levels(result.levels)
    total = len(result.levels)
    if failed:
        return f"{len(failed)} of {len(was_run)} levels failed", BAD
    if result.unfinished:
        return f"Ended early, after {total} of {total + len(result.unfinished)} levels", BAD
    if invalid:
        return f"All {len(was_run)} levels passed, but {len(invalid)} do not count", BAD
    if not was_run:
        return _judge_without_levels(result)
    if result.shutdown is not None and not result.shutdown.is_clean:
        return f"All {len(was_run)} levels passed, but the server did not stop cleanly", BAD
    which = "levels" if len(was_run) == total else "levels that were run"
    return f"All {len(was_run)} {which} passed", GOOD


def _sort_levels(
    levels: Sequence[LevelResult],
) -> tuple[list[LevelResult], list[LevelResult], list[LevelResult]]:
    """Returns the levels that were run, those of them that failed, and those that passed but are invalid."""
    was_run = [level for level in levels if level.was_run]
    failed = [level for level in was_run if not level.passed]
    invalid = [level for level in was_run if level.passed and not level.valid]
    return was_run, failed, invalid


def _judge_without_levels(result: LabResult) -> tuple[str, str]:
    """Judges a review, a profile or a matrix."""
    if result.review is not None:
        tone = REVIEW_TONES.get(result.review.verdict, DOUBTFUL)
        return f"{result.review.gate}: {result.review.verdict}", tone
    if result.profile is not None:
        return result.profile.in_words(), GOOD if result.profile.is_close else DOUBTFUL
    if result.matrix is not None:
        return result.matrix.words, GOOD if result.matrix.all_done else BAD
    return "No level was run", DOUBTFUL


def list_remarks(result: LabResult) -> list[str]:
    was_run, failed, _ = _sort_levels(result.levels)
    lines = [f"level {level.level} failed: {level.reason}" for level in failed]
    if result.unfinished:
        lines.append(f"the run ended early: level {', '.join(map(str, result.unfinished))} was not reached")
    if invalid := [str(level.level) for level in was_run if not level.valid]:
        names = ", ".join(invalid)
        lines.append(f"results of level {names} do not count: the kernel path was not the requested one")
    lines += [f"level {level.level} was not run: {level.reason}" for level in result.levels if not level.was_run]
    if any(level.is_new_baseline for level in was_run):
        lines.append("level 5 had no earlier run to compare with: this one is the baseline of later runs")
    if result.shutdown is not None and not result.shutdown.is_clean:
        lines.append(f"the server did not stop cleanly: {result.shutdown.in_words()}")
    return lines + [f"reduced: {line}" for line in result.reductions]
