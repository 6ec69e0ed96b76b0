"""Differences between the engine of an earlier result and the one that a rerun would start here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from firesteel.config import child_environment
from firesteel.lab.engine_facts import find_library
from firesteel.lab.engine_info import EngineInfo
from firesteel.lab.path.imports import MODULES, find_imports
from firesteel.lab.path.place import HostPlace
from firesteel.lab.servers.container.compose import find_runtime
from firesteel.lab.servers.container.runtime import ContainerRuntime
from firesteel.lab.servers.container.words import is_run, parse_run

COMPARED = ("interpreter", "python", "cuda", "cudnn", "nccl")
SHOWN_PACKAGES = 20  # of the other packages whose versions differ


def find_engine_now(before: EngineInfo, environment: Mapping[str, str]) -> EngineInfo:
    """Describes what the interpreter of an earlier result imports today, or the image of its container.

    Empty if it is not there any more.
    """
    if before.image:
        digest = find_runtime_of(before.command or ()).find_digest(before.image)
        return EngineInfo(image=before.image, digest=digest) if digest else EngineInfo()
    if not before.interpreter or not Path(before.interpreter).is_file():
        return EngineInfo()
    full = child_environment(environment)
    place = HostPlace(interpreter=before.interpreter, environment=full)
    imports = find_imports(place, tuple(before.modules) or MODULES)
    return replace(
        before,
        python=imports.python,
        cuda=imports.cuda,
        packages=imports.distributions,
        modules={name: package for name, package in imports.packages.items() if package is not None},
        cudnn=find_library("cudnn", imports.distributions, full),
        nccl=find_library("nccl", imports.distributions, full),
    )


def list_engine_differences(before: EngineInfo, now: EngineInfo) -> list[str]:
    """Returns a line for each difference of versions, commits and files."""
    if before.image:
        return _compare_images(before, now)
    if before.interpreter and not now.interpreter:
        return [f"interpreter of the engine: {before.interpreter} before, which does not exist here"]
    lines = [
        _line(f"{name} of the engine", getattr(before, name), getattr(now, name))
        for name in COMPARED
        if getattr(before, name) != getattr(now, name)
    ]
    lines += list(_compare_modules(before, now))
    names = sorted((before.packages.keys() | now.packages.keys()) - before.modules.keys())
    packages = [
        _line(f"package {name}", before.packages.get(name), now.packages.get(name))
        for name in names
        if before.packages.get(name) != now.packages.get(name)
    ]
    rest = len(packages) - SHOWN_PACKAGES
    return lines + packages[:SHOWN_PACKAGES] + ([f"{rest} more packages"] if rest > 0 else [])


def find_runtime_of(command: Sequence[str]) -> ContainerRuntime:
    """Returns the runtime that a command of an earlier result used."""
    return ContainerRuntime(parse_run(command).program) if is_run(command) else find_runtime()


def _compare_images(before: EngineInfo, now: EngineInfo) -> list[str]:
    if not now.image:
        return [f"image {before.image}: {before.digest} before, not on this machine now"]
    return [] if before.digest == now.digest else [_line(f"image {before.image}", before.digest, now.digest)]


def _compare_modules(before: EngineInfo, now: EngineInfo) -> Iterator[str]:
    for name, module in before.modules.items():
        today = now.modules.get(name)
        if today is None:
            yield f"{name}: {module.version} before, not installed now"
            continue
        for part in ("version", "file", "commit", "is_dirty"):
            if getattr(module, part) != getattr(today, part):
                yield _line(f"{part} of {name}", getattr(module, part), getattr(today, part))


def _line(name: str, before: object, now: object) -> str:
    return f"{name}: {_shown(before)} before, {_shown(now)} now"


def _shown(value: object) -> object:
    return "unknown" if value in (None, "") else value
