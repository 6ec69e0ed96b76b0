"""The headline of a report: its verdict, and what needs attention before any figure is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.lab.level_result import LevelResult
from firesteel.lab.matrix.review import ACCEPTED, REJECTED
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, PLAIN, CheckRow
from firesteel.lab.result import LabResult
from firesteel.lab.verdict import Verdict

REVIEW_TONES = {ACCEPTED: GOOD, REJECTED: BAD}
MIN_LINES, MAX_LINES = 4, 6  # parts of a list that is split into lines, and lines that are shown
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
    findings: tuple[CheckRow, ...] = ()


def make_headline(result: LabResult) -> Headline:
    words, tone = _judge_levels(result) if result.levels else _judge_without_levels(result)
    lines: tuple[str, ...] = ()
    if result.unfinished:
        lines = (f"the run ended early: level {', '.join(map(str, result.unfinished))} was not reached",)
    return Headline(words, tone, lines, tuple(list_findings(result)))


def _judge_levels(result: LabResult) -> tuple[str, str]:
    judged = [level for level in result.levels if level.verdict.is_judged]
    failed = [level for level in judged if level.failed]
    invalid = [level for level in judged if not level.valid]
    total = len(result.levels)
    if failed:
        names = " and ".join(f"{level.level.title} (level {level.level})" for level in failed)
        return f"{len(failed)} of {len(judged)} levels failed: {names}", BAD
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
        return result.matrix.words, _matrix_tone(result)
    return "No level was run", DOUBTFUL


def _matrix_tone(result: LabResult) -> str:
    assert result.matrix is not None
    return VERDICT_TONES[result.matrix.verdict] if result.matrix.all_done else BAD


def list_findings(result: LabResult) -> list[CheckRow]:
    """Returns what failed, then what was not judged. Levels that were not run for one reason share a row."""
    findings: list[CheckRow] = []
    for verdict in (Verdict.FAILED, Verdict.UNPROVEN):
        levels = [level for level in result.levels if level.verdict is verdict]
        findings += [finding for level in levels if level.checks for finding in _attend(level)]
        findings += _without_checks([level for level in levels if not level.checks])
    if invalid := [level for level in result.levels if not level.valid]:
        text = "the kernel path was not the requested one"
        findings.append(CheckRow(_name(invalid), "do not count", BAD, text))
    if result.shutdown is not None and not result.shutdown.is_clean:
        text = f"the server did not stop cleanly: {result.shutdown.in_words()}"
        findings.append(CheckRow("shutdown", Verdict.FAILED.words, BAD, text))
    return findings


def _attend(level: LevelResult) -> list[CheckRow]:
    """Returns the checks that gave a level its verdict."""
    rows = [check for check in level.checks if check.verdict is level.verdict]
    return [
        CheckRow(
            f"{level.level} {level.level.title}: {check.check}",
            check.verdict.words,
            VERDICT_TONES[check.verdict],
            list_lines(check.words),
            check.cure,
        )
        for check in rows
    ]


def _without_checks(levels: Sequence[LevelResult]) -> list[CheckRow]:
    findings = []
    for reason in dict.fromkeys(level.reason for level in levels):
        same = [level for level in levels if level.reason == reason]
        findings.append(explain(same[0], _name(same)))
    return findings


def explain(level: LevelResult, name: str) -> CheckRow:
    """Returns the reason of a level without checks: of a server that failed, with its diagnosis and last line."""
    words, tone = level.verdict.words, VERDICT_TONES[level.verdict]
    if level.diagnosis is None:
        return CheckRow(name, words, tone, list_lines(level.reason.removeprefix(f"{words}: ")))
    lines = [level.diagnosis.words, *level.diagnosis.evidence[-1:]]
    return CheckRow(name, words, tone, "\n".join(lines), level.diagnosis.cure)


def list_lines(words: str) -> str:
    """Puts the parts of a long list on lines of their own, and counts those beyond MAX_LINES."""
    parts = words.split("; ")
    if len(parts) < MIN_LINES:
        return words
    more = len(parts) - MAX_LINES
    return "\n".join([*parts[:MAX_LINES], *([f"and {more} more"] if more > 0 else [])])


def _name(levels: Sequence[LevelResult]) -> str:
    return ", ".join(f"{level.level} {level.level.title}" for level in levels)
