"""Finds where a server's packages and libraries are loaded from, without importing them here."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

TIMEOUT_S = 30
# Finds packages without importing them; run by the server's interpreter.
FIND = """
import importlib.util, json, sys
origins = {}
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    origins[name] = None if spec is None else spec.origin
print(json.dumps(origins))
"""
LIBRARY = re.compile(r"(/\S*?/(?:site-packages|dist-packages)/([^/\s]+))/\S*\.so\S*$")


def find_packages(process: psutil.Process, names: Sequence[str]) -> dict[str, str | None]:
    """Returns the real folder of each package as this process would import it; nothing if it is not Python."""
    with suppress(psutil.Error, OSError, ValueError, subprocess.SubprocessError):
        interpreter = process.cmdline()[0]
        if not names or "python" not in Path(interpreter).name:
            return {}
        command = [interpreter, "-c", FIND, *names]
        done = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S, check=True, env=process.environ(), cwd=process.cwd()
        )
        origins: dict[str, str | None] = json.loads(done.stdout)
        return {name: None if origin is None else real(Path(origin).parent) for name, origin in origins.items()}
    return {}


def find_libraries(processes: Sequence[psutil.Process]) -> dict[str, list[str]]:
    """Returns the real folders of loaded machine code, by package."""
    folders: dict[str, set[str]] = {}
    for process in processes:
        with suppress(OSError):
            for line in (
                Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
            ):
                if match := LIBRARY.search(line):
                    folders.setdefault(match[2], set()).add(real(Path(match[1])))
    return {name: sorted(places) for name, places in sorted(folders.items())}


def real(folder: Path) -> str:
    """Resolves links: the kernel reports mapped files without them, Python keeps those of its search path."""
    return str(folder.resolve())


def judge_places(packages: dict[str, str | None], libraries: dict[str, list[str]]) -> list[str]:
    """Returns faults: missing packages, and machine code from another folder than its package."""
    faults = [
        f"{name} cannot be imported by the server's Python" for name, place in packages.items() if place is None
    ]
    for name, places in libraries.items():
        place = packages.get(name)
        elsewhere = [other for other in places if place is not None and other != place]
        faults += [
            f"{name} is imported from {place}, but machine code from {other} is loaded" for other in elsewhere
        ]
        if len(places) > 1 and place is None:
            faults.append(f"machine code of {name} is loaded from two places: {', '.join(places)}")
    return faults
