"""Checks firesteel's ledger against --require, and for plain torch in place of kernels."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.kernels.op.op import REFERENCE
from firesteel.kernels.op.requirement import Requirement, list_requirements
from firesteel.lab.path.ledger import NONE, OpCalls, ServerLedger


def judge_requirements(require: str, ledger: ServerLedger) -> list[str]:
    """Returns faults: what --require names must have run, and nothing else of that op."""
    faults = {
        wanted: judge_requirement(wanted, [calls for calls in ledger.ran if calls.op == wanted.op])
        for wanted in list_requirements(require)
    }
    return [f"{wanted} was required, but {words}" for wanted, words in faults.items() if words]


def judge_requirement(wanted: Requirement, ran: Sequence[OpCalls]) -> str:
    """Returns what is wrong with the calls of its op; empty if nothing is."""
    others = sorted({calls.implementation for calls in ran if not wanted.names(calls.implementation)})
    verdicts = set().union(*(calls.verdicts for calls in ran))
    if others:
        return f"{', '.join(others)} ran"
    if not ran:
        return f"{wanted.op} did not run"
    if wanted.verdict is None or verdicts | {NONE} == {wanted.verdict, NONE}:
        return ""
    return f"the matrix instructions of its machine code are {', '.join(sorted(verdicts)) or NONE}"


def list_references(ledger: ServerLedger) -> list[str]:
    """Returns the ops that ran in plain torch, which is a fallback on a GPU."""
    return sorted({calls.op for calls in ledger.ran if calls.implementation == REFERENCE})
