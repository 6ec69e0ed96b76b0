"""The section on the kernel path: a row per slot with evidence and cure, and a row per op that ran."""

from __future__ import annotations

from firesteel.lab.path.ledger import NONE, OpCalls
from firesteel.lab.path.slots import SlotRow, SlotState
from firesteel.lab.report.document import DOUBTFUL, GOOD, PLAIN, Cell, Fold, Paragraph, Part, Table
from firesteel.lab.report.headline import VERDICT_TONES
from firesteel.lab.result import LabResult

PROOF_TONES = {"native-fp4": GOOD, "fp8": GOOD, "int8": GOOD, NONE: PLAIN}  # others are doubtful
MAX_OPEN = 12  # ops; a longer table is folded


def kernel_path(result: LabResult) -> list[Part]:
    return [*slots(result), *kernels(result)]


def slots(result: LabResult) -> list[Part]:
    table = result.any_slots
    if table is None:
        return []
    judged_as = f"path {table.path}" if table.path else "no fallback on this device"
    caption = f"{table.engine}, judged as: {judged_as}; expected slots without a value leave the path unproven"
    headings = ["slot", "state", "value", "expected", "evidence", "cure"]
    return [Table(headings, [_slot(row) for row in table.rows], caption).without_empty_columns()]


def _slot(row: SlotRow) -> list[Cell | str]:
    tone = VERDICT_TONES[row.verdict] if row.counts else PLAIN
    evidence = "\n".join(map(str, row.sightings)) or row.reason
    needs_cure = row.counts and row.state in (SlotState.NOT_SEEN, SlotState.CONTRADICTED)
    return [
        row.slot,
        Cell(row.state.value, tone),
        row.value,
        row.expected,
        evidence,
        row.cure.replace("; ", "\n") if needs_cure else "",
    ]


def kernels(result: LabResult) -> list[Part]:
    """Shows what ran with the proof of its machine code; times are known on a CPU only."""
    ran = result.any_kernels
    if not ran:
        return []
    is_launched = any(calls.launches for calls in ran)
    headings = ["op", "implementation", "activations", "calls", "us per call"]
    headings += ["proof", "launched"] if is_launched else []
    rows = [_op(calls, is_launched=is_launched) for calls in ran]
    caption = "from the ledger: what was called, not what was planned"
    table = Table(headings, rows, caption if is_launched else f"{caption}; no kernel was launched on a GPU")
    drafts = [] if result.any_drafts is None else [Paragraph(f"drafts: {result.any_drafts.in_words()}")]
    return [
        *drafts,
        Fold(f"ops that ran ({len(ran)})", [table.without_empty_columns()], is_open=len(ran) <= MAX_OPEN),
    ]


def _op(calls: OpCalls, *, is_launched: bool) -> list[Cell | str]:
    us = f"{1e6 * calls.seconds / calls.calls:.0f}" if calls.calls and calls.seconds else ""
    proof: list[Cell | str] = []
    if is_launched:
        launches = "\n".join(f"{number} x {name}" for name, number in calls.launches.items())
        proof = [prove(calls), launches or "no kernel of its own"]
    return [
        calls.op,
        calls.implementation,
        calls.activation,
        "" if calls.calls is None else str(calls.calls),
        us,
        *proof,
    ]


def prove(calls: OpCalls) -> Cell:
    """Shows the matrix instructions in the machine code that ran.

    Rounded activations that were multiplied as bf16 are doubtful: a fallback on a GPU that can do otherwise.
    """
    verdicts = {code.verdict or "not read yet" for code in calls.artefacts}
    shown = sorted(verdicts - {NONE}) or sorted(verdicts)
    is_rounded = calls.activation in ("mxfp8", "mxfp4")
    tones = {PROOF_TONES.get(verdict, DOUBTFUL) if verdict != "bf16" or is_rounded else PLAIN for verdict in shown}
    tone = next((tone for tone in (DOUBTFUL, GOOD) if tone in tones), PLAIN)
    return Cell(", ".join(shown) or "-", tone)
