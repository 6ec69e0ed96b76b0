"""Judges the slots of a kernel path by what was seen and what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firesteel.lab.path.engine_rules import NONE, UNSEEN, EngineRules
from firesteel.lab.path.evidence import PathEvidence
from firesteel.lab.path.expectation import Expectation, Expectations
from firesteel.lab.path.sightings import find_downgrade, find_sightings, is_older
from firesteel.lab.path.slots import SLOTS, Sighting, SlotRow, SlotState, SlotTable, make_table

UNSEEN_CURE = "add a profile of the server (`lab run --trace FILE`, `lab judge LOG FILE`)"


def judge_slots(evidence: PathEvidence, rules: EngineRules, expectations: Expectations | None = None) -> SlotTable:
    """Judges every slot. Without expectations, any path passes that is not a fallback on the device."""
    if expectations is None:
        expectations = rules.find_expectations(evidence.device, evidence.capability)
    found = find_sightings(rules, evidence)
    rows = [_judge_slot(slot, found[slot], evidence, rules, expectations) for slot in SLOTS]
    return make_table(rules.engine, expectations.path, rows)


def _judge_slot(
    slot: str,
    sightings: Sequence[Sighting],
    evidence: PathEvidence,
    rules: EngineRules,
    expectations: Expectations,
) -> SlotRow:
    expectation = expectations.by_slot.get(slot)
    row = SlotRow(
        slot=slot,
        expected="" if expectation is None else str(expectation),
        is_required=slot in expectations.required,
    )
    sightings, doubt = _apply_downgrades(slot, sightings, expectation, evidence, rules)
    absent = next((sighting for sighting in sightings if sighting.value == NONE), None)
    if absent is not None:
        wanted = expectation if row.is_required and expectations.is_explicit else None
        return _judge_absence(row, absent, wanted)
    if doubt or not sightings:
        unseen = rules.find_cure(slot, (UNSEEN,)) or UNSEEN_CURE
        return replace(row, sightings=tuple(sightings), reason=doubt, cure=unseen)
    row = replace(
        row,
        state=SlotState.SEEN,
        values=tuple(dict.fromkeys(sighting.value for sighting in sightings)),
        sightings=tuple(sightings),
    )
    return row if expectation is None else _compare(row, expectation, rules)


def _compare(row: SlotRow, expectation: Expectation, rules: EngineRules) -> SlotRow:
    wrong = expectation.find_contradiction(row.values)
    if wrong is None:
        return row
    sighting = next(sighting for sighting in row.sightings if sighting.value == wrong)
    about = f", {sighting.about}" if sighting.about else ""
    return replace(
        row,
        state=SlotState.CONTRADICTED,
        reason=f"{row.slot}={wrong}{about}; expected: {expectation} ({sighting})",
        cure=rules.find_cure(row.slot, (f"!{wrong}", *expectation.wanted, "")),
    )


def _judge_absence(row: SlotRow, absent: Sighting, expectation: Expectation | None) -> SlotRow:
    """Judges a slot that the model or the device does not have; what the user wants there contradicts it."""
    reason = f"{row.slot} is not applicable: {absent.line}"
    if expectation is None or not expectation.wanted:
        return replace(row, state=SlotState.NOT_APPLICABLE, sightings=(absent,), reason=reason)
    return replace(
        row,
        state=SlotState.CONTRADICTED,
        sightings=(absent,),
        reason=f"{reason}; expected: {expectation}",
        cure=f"leave {row.slot} out of --expect, or choose a device and a model that have it",
    )


def _apply_downgrades(
    slot: str,
    sightings: Sequence[Sighting],
    expectation: Expectation | None,
    evidence: PathEvidence,
    rules: EngineRules,
) -> tuple[list[Sighting], str]:
    """Replaces values that mean another one here; returns the sightings, and what cannot be told."""
    kept, doubt = [], ""
    for sighting in sightings:
        downgrade = find_downgrade(rules, slot, sighting.value, evidence)
        if downgrade is None:
            kept.append(sighting)
            continue
        version = evidence.versions.get(downgrade.package)
        if version is not None and is_older(version, downgrade.below):
            about = f"{downgrade.about} ({downgrade.package} is {version})"
            sighting = replace(sighting, value=downgrade.to, about=about)
        elif version is None and expectation is not None and expectation.find_contradiction((downgrade.to,)):
            older = f"{downgrade.package} below {downgrade.below}"
            doubt = (
                f"{slot}={sighting.value}: {downgrade.about} with {older}, and its version is unknown ({sighting})"
            )
        kept.append(sighting)
    return kept, doubt
