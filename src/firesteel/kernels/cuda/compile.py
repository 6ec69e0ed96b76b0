"""Compiles CUDA C++ with NVRTC for a GPU that need not be present."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from firesteel.errors import KernelError
from firesteel.kernels.cuda.binary import CudaBinary

# No folder is searched for headers: a program carries the headers that it includes.
OPTIONS = ("--std=c++17", "--no-source-include")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything that determines the machine code, except the compiler."""

    name: str
    text: str
    headers: Mapping[str, str]  # as included -> text
    options: tuple[str, ...]
    target: str  # "sm_90a"

    @property
    def digest(self) -> str:
        """Hash of the program and of the installed compiler."""
        content = json.dumps([asdict(self), OPTIONS, nvrtc_version()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


@functools.cache
def lacks_nvrtc() -> str | None:
    """Returns why nothing can be compiled here, or None."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        return f"needs cuda.bindings, which cannot be imported: pip install cuda-bindings ({error})"
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        return f"needs NVRTC, which cannot be loaded: pip install nvidia-cuda-nvrtc ({reason})"
    return None


def nvrtc_version() -> str:
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


def nvrtc_architectures() -> tuple[int, ...]:
    """Returns the architectures that NVRTC compiles for: 90, 121."""
    return tuple(_call(_nvrtc().nvrtcGetSupportedArchs))


def compile_program(program: Program) -> CudaBinary:
    nvrtc = _nvrtc()
    _check_target(program)
    texts = [text.encode() for text in program.headers.values()]
    names = [name.encode() for name in program.headers]
    handle = _call(nvrtc.nvrtcCreateProgram, program.text.encode(), program.name.encode(), len(names), texts, names)
    try:
        return _compile(handle, program)
    finally:
        _call(nvrtc.nvrtcDestroyProgram, handle)


def _compile(handle: Any, program: Program) -> CudaBinary:
    nvrtc = _nvrtc()
    options = [f"--gpu-architecture={program.target}", *OPTIONS, *program.options]
    (status,) = nvrtc.nvrtcCompileProgram(handle, len(options), [option.encode() for option in options])
    if status:
        log = _read_text(handle, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        raise KernelError(
            f"{program.name} does not compile for {program.target} with NVRTC {nvrtc_version()}, "
            f"options {' '.join(options)}: {log.strip() or status.name}"
        )
    cubin = _read(handle, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    return CudaBinary(cubin, _read_text(handle, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX))


def _check_target(program: Program) -> None:
    number = int(program.target.removeprefix("sm_").removesuffix("a"))
    known = nvrtc_architectures()
    if number not in known:
        raise KernelError(
            f"{program.name}: NVRTC {nvrtc_version()} does not know {program.target}; it compiles for "
            f"{', '.join(f'sm_{architecture}' for architecture in known)}: a newer nvidia-cuda-nvrtc may know it"
        )


def _read(handle: Any, find_size: Any, read: Any) -> bytes:
    content = bytes(_call(find_size, handle))  # the bindings write into it
    _call(read, handle, content)
    return content


def _read_text(handle: Any, find_size: Any, read: Any) -> str:
    """Reads a text, without its terminating zero."""
    return _read(handle, find_size, read).rstrip(b"\0").decode(errors="replace")


def _call(function: Any, *args: Any) -> Any:
    status, *results = function(*args)
    if status:
        raise RuntimeError(f"{function.__name__}: {status.name}")
    return results[0] if results else None


def _nvrtc() -> Any:
    if why := lacks_nvrtc():
        raise KernelError(f"CUDA C++ {why}")
    from cuda.bindings import nvrtc

    return nvrtc
