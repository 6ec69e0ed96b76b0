"""Settles slots of the kernel path by what later levels found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firesteel.lab.level import CORRECTNESS, KERNEL_PATH
from firesteel.lab.level_result import Checks, LevelCheck, LevelResult
from firesteel.lab.levels.coherence import COHERENCE, SHOWS_SINKS
from firesteel.lab.path.slots import ANSWERS, SINKS, Sighting, SlotState
from firesteel.lab.verdict import Verdict


def settle_sinks(results: Sequence[LevelResult]) -> list[LevelResult]:
    """Returns the results with sinks as seen if nothing else showed them and the answers are right.

    Without attention sinks the answers of gpt-oss are garbage: level 2 cannot pass, nor its check of coherence.
    """
    line = next((line for result in results if (line := find_proof(result))), "")
    return [_settle(result, line) if line else result for result in results]


def find_proof(result: LevelResult) -> str:
    """Returns the line about right answers; empty if they were wrong or not asked for."""
    if result.level != CORRECTNESS or result.failed:
        return ""
    if result.passed:
        return f"level {CORRECTNESS} passed: {result.reason}"
    rows = [row for row in result.checks if row.check == COHERENCE] if result.facts.get(SHOWS_SINKS) else []
    return next((f"level {CORRECTNESS}, {COHERENCE}: {row.words}" for row in rows if row.passed), "")


def _settle(result: LevelResult, line: str) -> LevelResult:
    if result.level != KERNEL_PATH or result.slots is None:
        return result
    sinks = result.slots.slots.get(SINKS)
    if sinks is None or sinks.state is not SlotState.NOT_SEEN:
        return result
    sighting = Sighting(value="on", source=ANSWERS, line=line)
    seen = replace(sinks, state=SlotState.SEEN, values=("on",), sightings=(sighting,), cure="")
    slots = result.slots.with_row(seen)
    checks = Checks(KERNEL_PATH)
    checks.facts |= result.facts
    checks.rows += [_as_seen(row, seen.in_words()) if row.check == SINKS else row for row in result.checks]
    judged = checks.result(slots.in_words(), slots=slots, ledger=result.ledger)
    return replace(judged, seconds=result.seconds, valid=result.valid)


def _as_seen(row: LevelCheck, words: str) -> LevelCheck:
    return replace(row, verdict=Verdict.PASSED, words=words, cure="")
