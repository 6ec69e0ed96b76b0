"""The result type of every measurement: all samples, and everything needed to repeat it.

A record is saved as JSON, with median, spread and hashes beside the samples for readers without Python; loading
checks that they agree.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from firesteel.config import Config, shown_value
from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.measure.timing import spread
from firesteel.surroundings import Surroundings, look_around, peak_memory_bytes

SCHEMA = 1
T = TypeVar("T")


class RecordError(UserError):
    """A record that cannot be read or has no valid samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    name: str  # what was measured: "decode", "op linear"
    unit: str  # of the samples: "s", "tok/s"
    samples: tuple[float, ...]
    parameters: dict[str, Any]  # of this measurement: batch, context, shape
    config: dict[str, Any]
    kernels: dict[str, str]  # implementations that may run, keyed by op
    peak_memory_bytes: int | None
    startup_s: float | None
    warmups: int
    seed: int | None
    surroundings: Surroundings

    def __post_init__(self) -> None:
        if not self.samples or not all(math.isfinite(sample) for sample in self.samples):
            raise RecordError(f"{self.name}: samples must be finite numbers, at least one, not {self.samples}")

    @classmethod
    def now(
        cls,
        device: DeviceSpec,
        config: Config,
        *,
        name: str,
        unit: str,
        samples: Sequence[float],
        warmups: int,
        parameters: Mapping[str, Any] | None = None,
        kernels: Sequence[tuple[str, str]] = (),
        startup_s: float | None = None,
        seed: int | None = None,
    ) -> Record:
        """Builds the record of a measurement that has just ended; `kernels` is the table of `Kernels`."""
        return cls(
            name=name,
            unit=unit,
            samples=tuple(samples),
            parameters=dict(parameters or {}),
            config=_shown_config(config),
            kernels=dict(kernels),
            peak_memory_bytes=peak_memory_bytes(device),
            startup_s=startup_s,
            warmups=warmups,
            seed=seed,
            surroundings=look_around(device),
        )

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        return spread(self.samples)

    @property
    def config_hash(self) -> str:
        return _hash(self.config)

    @property
    def file_name(self) -> str:
        """Unique name: equal for equal records, different for any two others."""
        words = (self.name, self.surroundings.device, self.surroundings.time_utc.replace(":", ""))
        return "--".join([*map(_slug, words), _hash(self.as_dict())[:8]]) + ".json"

    def as_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **dataclasses.asdict(self), **self._derived()}

    def save(self, folder: Path) -> Path:
        """Writes the file atomically: it exists completely or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file_name
        text = json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"
        handle, unfinished = tempfile.mkstemp(dir=folder, prefix=".", suffix=".unfinished")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(unfinished, 0o644)
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise
        return path

    @classmethod
    def load(cls, path: Path) -> Record:
        try:
            return cls._parse(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise RecordError(f"cannot read the record {path}: {error.strerror}") from error
        except ValueError as error:
            raise RecordError(f"{path} is not valid JSON: {error}") from error
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from error

    @classmethod
    def _parse(cls, content: Any) -> Record:
        if not isinstance(content, dict):
            raise RecordError(f"holds {type(content).__name__}, not an object")
        schema = content.get("schema")
        if schema != SCHEMA:
            raise RecordError(f"schema is {schema!r}, this firesteel reads {SCHEMA}")
        derived = ("schema", "median", "spread", "config_hash")
        record = _build(cls, {key: value for key, value in content.items() if key not in derived}, "")
        for name, value in record._derived().items():
            if name not in content:
                raise RecordError(f"missing field {name}")
            if content[name] != value:
                raise RecordError(f"{name} is {content[name]!r}, but the rest of the record makes it {value!r}")
        return record

    def _derived(self) -> dict[str, Any]:
        return {"median": self.median, "spread": self.spread, "config_hash": self.config_hash}


def _build(kind: type[T], content: Any, prefix: str) -> T:
    """Builds a dataclass from parsed JSON; raises for missing, unknown or mistyped fields."""
    if not isinstance(content, dict):
        raise RecordError(f"{prefix.rstrip('.')} must be an object, not {content!r}")
    hints = get_type_hints(kind)
    for name in content:
        if name not in hints:
            raise RecordError(f"unknown field {prefix}{name}")
    values = {}
    for name, hint in hints.items():
        if name not in content:
            raise RecordError(f"missing field {prefix}{name}")
        value = content[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            value = _build(hint, value, f"{prefix}{name}.")
        elif not _fits(value, hint):
            raise RecordError(f"{prefix}{name} cannot be {value!r}")
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(entry, inner[1]) for entry in value.values())
    if origin is tuple:
        return isinstance(value, list) and all(_fits(entry, inner[0]) for entry in value)
    if hint is Any:
        return True
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, int | float if hint is float else hint)


def _shown_config(config: Config) -> dict[str, Any]:
    sections = dataclasses.asdict(config)
    return {
        section: {name: shown_value(name, value) for name, value in values.items()}
        for section, values in sections.items()
    }


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
