"""Finds the packages of kernel libraries without importing them: where they lie, and in which version."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path

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


def describe_libraries() -> dict[str, str]:
    """Returns the version and place of each library, by name."""
    found = {"triton_kernels": find_triton_kernels(), "flashinfer": find_flashinfer()}
    return {name: str(package or ABSENT) for name, package in found.items()}


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
