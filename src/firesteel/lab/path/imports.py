"""Finds what a server imports: file, version and commit of its packages, and where its machine code is from.

The server's own interpreter is asked, in its environment and folder, so that the answer is what the server got.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from firesteel.errors import UserError
from firesteel.lab.codec import from_json
from firesteel.lab.path.place import Place
from firesteel.surroundings import find_commit

MODULES = ("vllm", "sglang", "firesteel", "flashinfer", "torch", "triton")
PROGRAM = Path(__file__).with_name("ask_imports.py")
LIBRARY = re.compile(r"(/\S*?/(?:site-packages|dist-packages)/([^/\s]+))/\S*\.so\S*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPackage:
    file: str = ""
    version: str = ""
    commit: str | None = None  # of the checkout that holds it, or that it was built from
    is_dirty: bool | None = None  # the checkout differs from that commit
    real_folder: str = ""  # of the file, without links, as the server's machine or container resolves them

    @property
    def folder(self) -> str:
        return self.real_folder or (str(Path(self.file).parent) if self.file else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerImports:
    """What a server imports; empty if it is not Python."""

    packages: Mapping[str, ImportedPackage | None] = field(default_factory=dict)  # None: not installed
    has_fused_moe: bool | None = None  # FlashInfer's CUTLASS MoE, as vLLM tests for it; None: not asked
    pythonpath: str = ""
    interpreter: str = ""
    python: str = ""  # version of the interpreter
    cuda: str | None = None  # that torch was built for
    distributions: Mapping[str, str] = field(default_factory=dict)  # everything installed -> version

    @property
    def is_silent(self) -> bool:
        """True if its Python did not answer."""
        return bool(self.interpreter) and not self.python

    @property
    def versions(self) -> dict[str, str]:
        known = {name: package.version for name, package in self.packages.items() if package is not None}
        return {name: version for name, version in known.items() if version}

    def in_words(self) -> str:
        shown = [
            f"{name} {package.version} from {package.file}" if package else f"{name} is not installed"
            for name, package in self.packages.items()
        ]
        if self.has_fused_moe is not None:
            shown.append(f"FlashInfer's fused MoE is {'there' if self.has_fused_moe else 'MISSING'}")
        if self.pythonpath:
            shown.append(f"PYTHONPATH={self.pythonpath}")
        return ", ".join(shown) or "no Python packages"


def find_imports(place: Place, names: Sequence[str] = MODULES) -> ServerImports:
    """Asks the interpreter of a server what it would import; without an answer, only the interpreter is known."""
    if not names or not place.interpreter:
        return ServerImports()
    printed = place.run(place.interpreter, "-c", PROGRAM.read_text(encoding="utf-8"), *names)
    lines = printed.splitlines() if printed else []
    with suppress(IndexError, ValueError, UserError):
        answer = json.loads(lines[-1])  # packages may print lines of their own
        pythonpath = place.environment.get("PYTHONPATH", "")
        imports = from_json(ServerImports, {**answer, "pythonpath": pythonpath}, "the server's imports")
        packages = {name: package and _with_checkout(package, place) for name, package in imports.packages.items()}
        return replace(imports, interpreter=place.interpreter, packages=packages)
    return ServerImports(interpreter=place.interpreter)


def _with_checkout(package: ImportedPackage, place: Place) -> ImportedPackage:
    """Returns the package with the state of its checkout, if git tracks its folder."""
    commit, is_dirty = find_commit(Path(package.file).parent, place.run) if package.file else (None, None)
    return package if commit is None else replace(package, commit=commit, is_dirty=is_dirty)


def find_libraries(processes: Sequence[psutil.Process]) -> dict[str, list[str]]:
    """Returns the folders of loaded machine code, by package; the kernel reports them without links."""
    folders: dict[str, set[str]] = {}
    for process in processes:
        with suppress(OSError):
            for line in (
                Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
            ):
                if match := LIBRARY.search(line):
                    folders.setdefault(match[2], set()).add(match[1])
    return {name: sorted(places) for name, places in sorted(folders.items())}


def judge_imports(
    imports: ServerImports, libraries: Mapping[str, Sequence[str]], required: Sequence[str]
) -> list[str]:
    """Returns faults: missing packages, and machine code from another folder than its package."""
    faults = [
        f"{name} cannot be imported by the server's Python"
        for name in required
        if name in imports.packages and imports.packages[name] is None
    ]
    for name, places in libraries.items():
        package = imports.packages.get(name)
        folder = package.folder if package is not None else None
        elsewhere = [place for place in places if folder is not None and place != folder]
        faults += [
            f"{name} is imported from {folder}, but machine code from {place} is loaded" for place in elsewhere
        ]
        if len(places) > 1 and folder is None:
            faults.append(f"machine code of {name} is loaded from two places: {', '.join(places)}")
    return faults
