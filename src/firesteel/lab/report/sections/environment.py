"""The section on the environment: of the engine under test, and of the lab itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from firesteel.lab.engine_info import EngineInfo
from firesteel.lab.report.document import Fold, Part, Table
from firesteel.lab.result import LabResult
from firesteel.lab.surroundings import StatedSurroundings

ENGINE_FIELDS = {
    "name": "engine",
    "version": "version",
    "commit": "commit",
    "is_dirty": "changed since the commit",
    "model": "model",
    "max_context": "context length",
    "device": "device",
    "url": "address",
    "image": "image",
    "digest": "digest of the image",
    "container": "container",
    "python": "Python",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "driver": "driver",
}


def environment(result: LabResult) -> list[Part]:
    parts: list[Part] = [] if result.engine is None else _engine(result.engine)
    return [*parts, *([] if result.surroundings is None else _lab(result.surroundings))]


def _engine(engine: EngineInfo) -> list[Part]:
    rows: list[tuple[str, Any]] = [(words, getattr(engine, name)) for name, words in ENGINE_FIELDS.items()]
    rows += [
        ("command", " ".join(engine.command or ())),
        ("clocks (MHz)", _join(engine.clocks_mhz)),
        *((name, value) for name, value in engine.environment.items()),
    ]
    modules = [
        [
            name,
            *(("not installed", "", "") if module is None else (module.version, module.commit or "", module.file)),
        ]
        for name, module in engine.modules.items()
    ]
    parts: list[Part] = _list_known("engine under test", rows)
    if modules:
        parts.append(Table(["package", "version", "commit", "imported from"], modules))
    if engine.packages:
        packages = Table(["package", "version"], [list(pair) for pair in sorted(engine.packages.items())])
        parts.append(Fold(f"all {len(engine.packages)} packages of its Python", [packages]))
    return parts


def _lab(around: StatedSurroundings) -> list[Part]:
    gpu = around.gpu
    rows: list[tuple[str, Any]] = [
        ("device", around.device),
        ("compute capability", around.capability),
        ("time", around.time_utc),
        ("commit of firesteel", around.commit),
        ("changed since the commit", around.is_dirty),
        *((f"version of {name}", version) for name, version in around.versions.items()),
        ("command", " ".join(around.command)),
        ("driver", gpu.driver),
        ("clocks (MHz)", _join(gpu.clocks_mhz)),
        ("power", _join(gpu.power)),
        *(around.environment or {}).items(),
    ]
    return _list_known("lab", rows)


def _list_known(title: str, rows: Iterable[tuple[str, Any]]) -> list[Part]:
    known = [[name, _say(value)] for name, value in rows if value not in (None, "")]
    return [Table([title, "value"], known)] if known else []


def _say(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _join(values: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (values or {}).items() if value is not None)
