"""Where a server's packages and libraries come from, and whether that is one place; imports none of them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

PATIENCE_S = 30
# Finds a package without importing it; run by the interpreter of the server.
FIND = """
import importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    found[name] = None if spec is None else spec.origin
print(json.dumps(found))
"""
LIBRARY = re.compile(r"(/\S*?/(?:site-packages|dist-packages)/([^/\s]+))/\S*\.so\S*$")


def find_packages(process: psutil.Process, names: Sequence[str]) -> dict[str, str | None]:
    """Real folder of each package as this process would import it; nothing where it is no Python."""
    with suppress(psutil.Error, OSError, ValueError, subprocess.SubprocessError):
        interpreter = process.cmdline()[0]
        if not names or "python" not in Path(interpreter).name:
            return {}
        command = [interpreter, "-c", FIND, *names]
        done = subprocess.run(
            command, capture_output=True, timeout=PATIENCE_S, check=True, env=process.environ(), cwd=process.cwd()
        )
        found: dict[str, str | None] = json.loads(done.stdout)
        return {name: None if origin is None else real(Path(origin).parent) for name, origin in found.items()}
    return {}


def find_libraries(processes: Sequence[psutil.Process]) -> dict[str, list[str]]:
    """Real folders by package of the machine code that is loaded now."""
    found: dict[str, set[str]] = {}
    for one in processes:
        with suppress(OSError):
            for line in Path(f"/proc/{one.pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
                if match := LIBRARY.search(line):
                    found.setdefault(match[2], set()).add(real(Path(match[1])))
    return {name: sorted(places) for name, places in sorted(found.items())}


def real(folder: Path) -> str:
    """The kernel tells no links of what it mapped, while Python keeps those of the path it searched."""
    return str(folder.resolve())


def judge_places(packages: dict[str, str | None], libraries: dict[str, list[str]]) -> list[str]:
    """Faults: packages that are missing, and machine code from elsewhere than the package."""
    faults = [
        f"{name} cannot be imported by the server's Python" for name, place in packages.items() if place is None
    ]
    for name, places in libraries.items():
        place = packages.get(name)
        elsewhere = [one for one in places if place is not None and one != place]
        faults += [f"{name} is imported from {place}, but machine code from {one} is loaded" for one in elsewhere]
        if len(places) > 1 and place is None:
            faults.append(f"machine code of {name} is loaded from two places: {', '.join(places)}")
    return faults
