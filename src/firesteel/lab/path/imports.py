"""Finds what a server imports: file and version of its packages, PYTHONPATH, and where its machine code is from.

The server's own interpreter is asked, in its environment and folder, so that the answer is what the server got.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from firesteel.lab.codec import from_json

TIMEOUT_S = 180  # importing vLLM takes a minute on a busy machine
# Run by the server's interpreter. Packages are found without importing them; flashinfer's distribution is called
# flashinfer-python. vLLM's own test for FlashInfer's fused MoE decides whether it can be chosen; it is asked only
# if both are installed.
FIND = """
import importlib.metadata, importlib.util, json, sys
packages = {}
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    version = ""
    for distribution in (name, name + "-python"):
        try:
            version = version or importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            pass
    packages[name] = {"file": spec.origin or "", "version": version} if spec else None
has_fused_moe = None
if packages.get("vllm") and packages.get("flashinfer"):
    try:
        from vllm.utils.flashinfer import has_flashinfer_cutlass_fused_moe
        has_fused_moe = bool(has_flashinfer_cutlass_fused_moe())
    except (ImportError, RuntimeError, OSError, AttributeError):
        pass
print(json.dumps({"packages": packages, "has_fused_moe": has_fused_moe}))
"""
LIBRARY = re.compile(r"(/\S*?/(?:site-packages|dist-packages)/([^/\s]+))/\S*\.so\S*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPackage:
    file: str = ""
    version: str = ""

    @property
    def folder(self) -> str:
        return real(Path(self.file).parent) if self.file else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerImports:
    """What a server imports; empty if it is not Python or could not be asked."""

    packages: Mapping[str, ImportedPackage | None] = field(default_factory=dict)  # None: not installed
    has_fused_moe: bool | None = None  # FlashInfer's CUTLASS MoE, as vLLM tests for it; None: not asked
    pythonpath: str = ""

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


def find_imports(process: psutil.Process, names: Sequence[str]) -> ServerImports:
    """Asks the interpreter of a process what it would import."""
    with suppress(psutil.Error, OSError, ValueError, subprocess.SubprocessError):
        command, environment = process.cmdline(), process.environ()  # no words: the process has just ended
        interpreter = command[0] if command else ""
        if not names or "python" not in Path(interpreter).name:
            return ServerImports()
        done = subprocess.run(
            [interpreter, "-c", FIND, *names],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
            env=environment,
            cwd=process.cwd(),
        )
        answer = json.loads(done.stdout.splitlines()[-1])  # packages may print lines of their own
        pythonpath = environment.get("PYTHONPATH", "")
        return from_json(ServerImports, {**answer, "pythonpath": pythonpath}, "the server's imports")
    return ServerImports()


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
