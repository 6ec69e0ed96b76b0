"""Rescored tokens in benchmarks: their table cell, and the error for wrong ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from firesteel.cli.app import show_error
from firesteel.exit_code import ExitCode

if TYPE_CHECKING:
    from firesteel.measure.tokens.rescore import Rescored


def in_words(rescored: Rescored | None) -> str:
    if rescored is None:
        return "not checked"
    gaps = rescored.gaps
    return f"{100 * rescored.likeliest_share:.1f} % of {len(gaps)}, others within {max(gaps):.2f} nats"


def report_wrong_tokens(checks: Iterable[tuple[int, Rescored | None]], *, is_rounded: bool) -> None:
    """Prints an error for each (number of requests in flight, rescored tokens) that is wrong; exits as failed."""
    has_fault = False
    for in_flight, rescored in checks:
        fault = None if rescored is None else rescored.find_fault(is_rounded=is_rounded)
        if fault is not None:
            show_error(f"with {in_flight} in flight the tokens are wrong: rescored, they are {fault}")
            has_fault = True
    if has_fault:
        raise typer.Exit(ExitCode.FAILED)
