"""The inputs of a level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firesteel.device import DeviceSpec
from firesteel.lab.result import LabResult
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelContext:
    spec: LabSpec
    folder: Path
    device: DeviceSpec
    on_progress: Callable[[str], None]
    result_so_far: Callable[[], LabResult]
    running: Target | None = None  # None after the server has stopped
    cross_check: str | None = None  # faults that a profiler found; None if it was not used

    @property
    def target(self) -> Target:
        """The server, for levels that need one."""
        assert self.running is not None
        return self.running
