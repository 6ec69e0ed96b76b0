"""The section on levels: what each of them looked at."""

from __future__ import annotations

from firesteel.lab.level_result import LevelCheck, LevelResult
from firesteel.lab.report.document import BAD, CheckList, CheckRow, Fold, Paragraph, Part
from firesteel.lab.report.headline import VERDICT_TONES, explain, list_lines
from firesteel.lab.report.number_format import duration
from firesteel.lab.result import LabResult
from firesteel.lab.verdict import Verdict


def levels(result: LabResult) -> list[Part]:
    return [_level(level) for level in result.levels]


def _level(level: LevelResult) -> Fold:
    checks = list_checks(level)
    parts: list[Part] = [CheckList([_finding(check) for check in checks])] if checks else []
    if not level.checks:
        parts.append(CheckList([explain(level, "reason")]))
    elif level.slots is not None:
        parts.append(Paragraph(f"Slots, as listed under Kernel path: {level.slots.in_words()}"))
    elif not any(check.words in level.reason for check in level.checks):
        parts.insert(0, Paragraph(level.reason))
    does_count = level.valid or not level.verdict.is_judged
    return Fold(
        title=f"{level.level} {level.level.title}",
        parts=parts,
        status=level.verdict.words if does_count else "does not count",
        tone=VERDICT_TONES[level.verdict] if does_count else BAD,
        note=_note(level),
    )


def list_checks(level: LevelResult) -> list[LevelCheck]:
    """Returns the checks but those of slots, which have a table of their own."""
    slots = () if level.slots is None else tuple(level.slots.slots)
    return [check for check in level.checks if check.check not in slots]


def _note(level: LevelResult) -> str:
    passed = sum(check.passed for check in level.checks)
    possible = sum(check.verdict is not Verdict.NOT_APPLICABLE for check in level.checks)
    counted = f"{passed} of {possible} checks passed" if possible else ""
    took = duration(level.seconds) if level.seconds >= 1 else ""
    return " · ".join(word for word in (counted, took) if word)


def _finding(check: LevelCheck) -> CheckRow:
    cure = "" if check.passed else check.cure
    return CheckRow(check.check, check.verdict.words, VERDICT_TONES[check.verdict], list_lines(check.words), cure)
