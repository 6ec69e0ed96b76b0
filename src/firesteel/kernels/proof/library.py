"""Reads the machine code in a compiled library: its kernels, their matrix instructions, registers and spills."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firesteel.errors import UserError
from firesteel.kernels.op.verdict import PATIENCE_S, count_sass, judge, split_sections

USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")
TARGET = re.compile(r"\.(sm_\w+)\.cubin$")
NO_CODE = "does not contain device code"
MATRIX_ATOM = re.compile(r"MMA_(\d+x\d+x\d+)_")  # CUTLASS names the instruction of a kernel in its types


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryKernel:
    """A kernel of a compiled library; its dynamic shared memory is not known before it is launched."""

    library: str
    kernel: str  # as the compiler mangled it
    target: str
    verdict: str
    sass: dict[str, int]  # matrix instruction -> how often it stands in the code
    registers: int  # per thread
    spills: int  # registers per thread that are spilled to memory, or arrays that are indexed by run-time values

    @property
    def short_name(self) -> str:
        """The function's own name, with the instruction that CUTLASS chose for it."""
        atom = MATRIX_ATOM.search(self.kernel)
        return find_function(self.kernel) + (f" {atom[1]}" if atom else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryTargets:
    """The architectures that a library has code for, such as sm_80, sm_90a or sm_120f."""

    machine_code: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()  # that the driver can compile when it is loaded


def read_library(path: Path) -> list[LibraryKernel]:
    """Reads every kernel of a shared library, an object file or a cubin."""
    if not path.is_file():
        raise UserError(f"{path} is not a file: name a compiled library (.so), an object file or a cubin")
    with tempfile.TemporaryDirectory() as folder:
        kernels = [kernel for cubin in _extract(path, Path(folder)) for kernel in _read_cubin(path.stem, cubin)]
    if not kernels:
        raise UserError(f"{path} holds no machine code of a GPU")
    return kernels


def list_targets(path: Path) -> LibraryTargets:
    """Lists what a shared library, object file, fatbin or cubin holds, which may be nothing; reads no code."""
    return LibraryTargets(
        machine_code=_read_targets(path, "--list-elf", "cubin"), ptx=_read_targets(path, "--list-ptx", "ptx")
    )


def _read_targets(path: Path, flag: str, suffix: str) -> tuple[str, ...]:
    try:
        listed = _run("cuobjdump", flag, str(path.resolve()), folder=path.parent)
    except UserError as error:
        if NO_CODE in str(error):
            return ()
        raise
    targets = re.findall(rf"\.(sm_\w+)\.{suffix}\s*$", listed, re.MULTILINE)
    return tuple(dict.fromkeys(targets))


def find_function(mangled: str) -> str:
    """Returns the last name of a mangled C++ function, without namespaces and types."""
    name, place = mangled, 3 if mangled.startswith("_ZN") else 2
    if not mangled.startswith("_Z"):
        return mangled
    while (length := re.compile(r"\d+").match(mangled, place)) is not None:
        place = length.end() + int(length[0])
        name = mangled[length.end() : place]
    return name


def _extract(path: Path, folder: Path) -> list[Path]:
    """Writes the cubins of a library to a folder; a cubin is its own."""
    if path.suffix == ".cubin":
        return [path]
    _run("cuobjdump", "--extract-elf", "all", str(path.resolve()), folder=folder)
    return sorted(folder.glob("*.cubin"))


def _read_cubin(library: str, cubin: Path) -> Iterator[LibraryKernel]:
    target = TARGET.search(cubin.name)
    sections = split_sections(_run("nvdisasm", "--print-code", str(cubin), folder=cubin.parent))
    for kernel, registers, stack_bytes, _ in USAGE.findall(
        _run("cuobjdump", "--dump-resource-usage", str(cubin), folder=cubin.parent)
    ):
        sass = count_sass(sections.get(f".text.{kernel}", ""))
        yield LibraryKernel(
            library=library,
            kernel=kernel,
            target=target[1] if target else "",
            verdict=judge((), sass, ()),
            sass=sass,
            registers=int(registers),
            spills=int(stack_bytes) // 4,
        )


def _run(tool: str, *arguments: str, folder: Path) -> str:
    from triton import knobs

    command = [getattr(knobs.nvidia, tool).path, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=folder)
    if done.returncode:
        raise UserError(f"{tool} cannot read {arguments[-1]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
