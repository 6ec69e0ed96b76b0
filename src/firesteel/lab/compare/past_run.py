"""An earlier run in the same folder, as a later result keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from firesteel.lab.compare.samples import RunSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    settings: str  # hash of the settings and the device: runs that differ in it are not compared
    time_utc: str | None = None
    engine: str = ""  # with version and commit
    figures: Mapping[str, RunSamples] = field(default_factory=dict)  # the key figures by name
