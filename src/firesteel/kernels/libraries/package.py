"""Finds the packages of kernel libraries without importing them: where they lie, and in which version."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from firesteel.config.environment import current

ABSENT = "not installed; needed only if --kernels asks for it"
UNKNOWN = "of unknown version"


@dataclass(frozen=True, slots=True)
class LibraryPackage:
    """An installed kernel library."""

    name: str
    version: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.name} {self.version} at {self.folder}"


@functools.cache
def find_triton_kernels() -> LibraryPackage | None:
    """Finds the package, or else the copy that vLLM's wheel brings."""
    own = find_folder("triton_kernels")
    if own is not None:
        return LibraryPackage("triton_kernels", find_version("triton_kernels"), own)
    vllm = find_folder("vllm")
    copy = None if vllm is None else vllm / "third_party" / "triton_kernels"
    if copy is None or not copy.is_dir():
        return None
    return LibraryPackage("triton_kernels", f"in vLLM {find_version('vllm')}", copy)


@functools.cache
def find_flashinfer() -> LibraryPackage | None:
    folder = find_folder("flashinfer")
    return None if folder is None else LibraryPackage("flashinfer", find_version("flashinfer-python"), folder)


def list_ahead(package: LibraryPackage) -> dict[str, Path]:
    """Lists the modules that were compiled ahead for FlashInfer, where it looks for them first, by name."""
    return _list_modules(package.folder / "data" / "aot")


def list_compiled(package: LibraryPackage) -> dict[str, Path]:
    """Lists the modules of FlashInfer that are compiled, ahead or at an earlier call, by name."""
    cached = {}
    for folder in sorted((find_cache() / package.version).glob("*/cached_ops")):
        cached.update(_list_modules(folder))
    return cached | list_ahead(package)


def _list_modules(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*/*.so")) if path.stem == path.parent.name}


def find_cache() -> Path:
    """Returns the folder in which FlashInfer keeps what it compiled."""
    return Path(current(None).get("FLASHINFER_WORKSPACE_BASE") or Path.home()) / ".cache" / "flashinfer"


def describe_libraries() -> dict[str, str]:
    """Returns the version and place of each library, and what it has compiled, by name."""
    found = {"triton_kernels": find_triton_kernels(), "flashinfer": find_flashinfer()}
    said = {name: str(package or ABSENT) for name, package in found.items()}
    if (package := found["flashinfer"]) is not None:
        modules = (f"{name} ({path.stat().st_size / 1e6:.1f} MB)" for name, path in list_compiled(package).items())
        said["flashinfer"] += f"; compiled: {', '.join(modules) or 'nothing yet'}"
    return said


def find_folder(module: str) -> Path | None:
    """Returns the folder of a top-level package."""
    spec = importlib.util.find_spec(module)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]) if places else None


def find_version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN
