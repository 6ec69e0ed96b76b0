"""The surroundings of a measurement as a result states them, and their differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.lab.codec import from_json, to_json
from firesteel.surroundings import GpuState, look_around

COMPARED = ("device", "capability", "commit", "packages_hash")
NOT_SET = "not set"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedSurroundings:
    """The fields of `firesteel.surroundings.Surroundings`, all optional: earlier results state fewer."""

    device: str | None = None
    capability: str | None = None
    gpu: GpuState = field(default_factory=GpuState)
    versions: dict[str, str | None] = field(default_factory=dict)
    packages_hash: str | None = None
    commit: str | None = None
    is_dirty: bool | None = None
    environment: dict[str, str] | None = None
    command: tuple[str, ...] = ()
    time_utc: str | None = None

    @classmethod
    def now(cls, device: DeviceSpec) -> StatedSurroundings:
        return from_json(cls, dataclasses.asdict(look_around(device)), "the surroundings")

    def as_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = to_json(self)
        return content


def list_differences(before: StatedSurroundings | None, after: StatedSurroundings | None) -> list[str]:
    """Returns a line for each field that changed and could explain a change of speed."""
    if before is None or after is None:
        return []
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in COMPARED]
    pairs.append(("driver", before.gpu.driver, after.gpu.driver))
    pairs += [
        (f"version of {name}", version, after.versions.get(name)) for name, version in before.versions.items()
    ]
    if before.environment is not None:
        pairs += _pair_variables(before.environment, after.environment or {})
    return [f"{name}: {old} before, {new} now" for name, old, new in pairs if old != new]


def _pair_variables(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str, str]]:
    names = sorted(before.keys() | after.keys())
    return [(f"variable {name}", before.get(name, NOT_SET), after.get(name, NOT_SET)) for name in names]
