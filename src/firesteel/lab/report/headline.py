"""The headline of a report: its verdict, and what a reader must know before any figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from firesteel.lab.level_result import LevelResult
from firesteel.lab.matrix.review import ACCEPTED, REJECTED
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, PLAIN
from firesteel.lab.result import LabResult
from firesteel.lab.verdict import Verdict

REVIEW_TONES = {ACCEPTED: GOOD, REJECTED: BAD}
VERDICT_TONES = {
    Verdict.PASSED: GOOD,
    Verdict.FAILED: BAD,
    Verdict.UNPROVEN: DOUBTFUL,
    Verdict.NOT_APPLICABLE: PLAIN,
}


@dataclass(frozen=True, slots=True)
class Headline:
    words: str
    tone: str
    lines: tuple[str, ...] = ()


def make_headline(result: LabResult) -> Headline:
    words, tone = _judge_levels(result) if result.levels else _judge_without_levels(result)
    return Headline(words, tone, tuple(list_remarks(result)))


def _judge_levels(result: LabResult) -> tuple[str, str]:
    judged = [level for level in result.levels if level.verdict.is_judged]
    failed = [level for level in judged if level.failed]
    invalid = [level for level in judged if not level.valid]
    total = len(result.levels)
    if failed:
        return f"{len(failed)} of {len(judged)} levels failed", BAD
    if invalid:
        return f"All {len(judged)} levels passed, but {len(invalid)} do not count", BAD
    if result.shutdown is not None and not result.shutdown.is_clean:
        return f"All {len(judged)} levels passed, but the server did not stop cleanly", BAD
    if result.unfinished:
        return f"UNPROVEN: ended early, after {total} of {total + len(result.unfinished)} levels", DOUBTFUL
    if result.unjudged:
        names = " and ".join(f"{level.title} (level {level})" for level in result.unjudged)
        return f"UNPROVEN: {names} could not be judged", DOUBTFUL
    if not judged:
        return "UNPROVEN: no level was judged", DOUBTFUL
    which = "levels" if len(judged) == total else "levels that were judged"
    return f"All {len(judged)} {which} passed", GOOD


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
    levels = result.levels
    lines = _list_reasons(levels, Verdict.FAILED, "failed")
    if result.unfinished:
        lines.append(f"the run ended early: level {', '.join(map(str, result.unfinished))} was not reached")
    if invalid := [str(level.level) for level in levels if not level.valid]:
        names = ", ".join(invalid)
        lines.append(f"results of level {names} do not count: the kernel path was not the requested one")
    lines += _list_reasons(levels, Verdict.UNPROVEN, "was not judged")
    lines += _list_reasons(levels, Verdict.NOT_APPLICABLE, "is not applicable")
    if result.shutdown is not None and not result.shutdown.is_clean:
        lines.append(f"the server did not stop cleanly: {result.shutdown.in_words()}")
    return lines + [f"reduced: {line}" for line in result.reductions]


def _list_reasons(levels: Iterable[LevelResult], verdict: Verdict, words: str) -> list[str]:
    """Returns a line per level with this verdict; its reason may begin with the verdict itself."""
    return [
        f"level {level.level} {words}: {level.reason.removeprefix(f'{verdict.words}: ')}"
        for level in levels
        if level.verdict is verdict
    ]
