"""The verdict on a check, a level or a run. What could not be judged is never called passed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from firesteel.errors import UserError
from firesteel.exit_code import ExitCode


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    UNPROVEN = "unproven"  # nothing, or not enough, was seen to judge it
    NOT_APPLICABLE = "not applicable"  # the device or the settings cannot have it, such as CUDA graphs on a CPU

    @classmethod
    def of(cls, has_passed: bool) -> Verdict:
        return cls.PASSED if has_passed else cls.FAILED

    @property
    def words(self) -> str:
        """The verdict on a part of a run; a whole run is called unproven."""
        return "not judged" if self is Verdict.UNPROVEN else self.value

    @property
    def is_judged(self) -> bool:
        return self in (Verdict.PASSED, Verdict.FAILED)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a program that ends with this verdict."""
        return {Verdict.PASSED: ExitCode.PASSED, Verdict.FAILED: ExitCode.FAILED}.get(self, ExitCode.UNPROVEN)


def conclude(verdicts: Iterable[Verdict], *, needs_all: bool) -> Verdict:
    """Returns the verdict on a whole by those on its parts.

    One failed part fails it. `needs_all`: each part must have been judged, else one is enough. Parts that are not
    applicable do not count; without any other the whole is not applicable, and without parts it is unproven.
    """
    present = set(verdicts)
    order = [Verdict.FAILED, Verdict.PASSED, Verdict.UNPROVEN, Verdict.NOT_APPLICABLE]
    if needs_all:
        order[1:3] = Verdict.UNPROVEN, Verdict.PASSED
    return next((verdict for verdict in order if verdict in present), Verdict.UNPROVEN)


def parse_verdict(content: Mapping[str, Any]) -> Verdict:
    """Reads the field `verdict`; earlier versions wrote `passed`, and `was_run` if the part was not judged."""
    if "verdict" not in content:
        return Verdict.of(bool(content.get("passed"))) if content.get("was_run", True) else Verdict.UNPROVEN
    try:
        return Verdict(content["verdict"])
    except ValueError as error:
        known = ", ".join(verdict.value for verdict in Verdict)
        raise UserError(f"{content['verdict']!r} is not a verdict of this version: it has {known}") from error
