"""The state of a report: the parts that ran, with their results, and the part that runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.exit_code import ExitCode
from firesteel.spark_report.machine_log import MachineSample
from firesteel.surroundings import Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    name: str
    command: str
    exit_code: int
    seconds: float
    expected_minutes: float = 0.0
    result: Any  # parsed JSON of the command, None if it printed none
    reason: str = ""  # why the guard ended it, or did not start it
    last_words: str  # end of stderr
    machine: tuple[MachineSample, ...] = ()

    @property
    def not_measured(self) -> str:
        """Which program or network connection the whole part lacks; empty otherwise."""
        return str(self.result.get("not_measured", "")) if isinstance(self.result, dict) else ""

    @property
    def has_failed(self) -> bool:
        return self.exit_code not in (ExitCode.PASSED, ExitCode.UNPROVEN) and not self.not_measured

    @property
    def outcome(self) -> str:
        if self.not_measured:
            return "not measured"
        if self.exit_code == ExitCode.UNPROVEN:
            return "done, not all was judged"
        if not self.has_failed:
            return "done"
        return f"FAILED (exit code {self.exit_code}{f'; {self.reason}' if self.reason else ''})"

    def as_dict(self) -> dict[str, Any]:
        """Returns everything except the samples, which have a file of their own."""
        return {
            declared.name: getattr(self, declared.name)
            for declared in dataclasses.fields(self)
            if declared.name != "machine"
        }


@dataclass(slots=True, kw_only=True)
class Report:
    """The state of a run."""

    device: DeviceSpec
    surroundings: Surroundings
    quick: bool
    model: Path | None = None
    planned: list[str]
    running: str = ""  # part that runs now: if the machine froze, the one that froze it
    parts: list[PartReport] = field(default_factory=list)
