"""GPU memory of other processes, read from NVIDIA's management library (NVML), without CUDA."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import psutil  # type: ignore[import-untyped]

OWN = "its processes"
WHOLE = "whole GPUs, by whomever"  # the driver does not tell processes apart
INITIAL_NAMESPACE = 0xEFFFFFFC  # inode of the initial PID namespace, whose pids the driver reports


@dataclass(frozen=True, slots=True)
class GpuMemory:
    used: int  # bytes
    scope: str  # OWN or WHOLE; figures of different scopes are never compared


def used_by(pids: Iterable[int]) -> GpuMemory | None:
    """Returns the GPU memory of these processes or, if the driver does not report it, of the GPUs visible to them.

    None without a GPU, without processes, and if the GPU shares the system's memory and reports nothing.
    """
    library, wanted = _library(), set(pids)
    if library is None or not wanted:
        return None
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        own = _of_processes(library, handles, wanted)
        if own is not None or not handles:
            return None if own is None else GpuMemory(own, OWN)
        choices = _find_choices(wanted)
        visible = _visible(library, handles, choices)
        used = sum(int(library.nvmlDeviceGetMemoryInfo(handle).used) for handle in visible)
        return GpuMemory(used, WHOLE) if choices else None
    except library.NVMLError:
        return None


def keep_one_scope(samples: Iterable[GpuMemory | None]) -> tuple[list[int | None], str | None]:
    """Returns the bytes of one scope, and that scope: whole GPUs are left out if the processes' own are known."""
    taken = list(samples)
    scopes = {sample.scope for sample in taken if sample is not None}
    scope = OWN if OWN in scopes else next(iter(scopes), None)
    return [sample.used if sample is not None and sample.scope == scope else None for sample in taken], scope


def _of_processes(library: Any, handles: Sequence[Any], pids: set[int]) -> int | None:
    """Returns None if the driver has no figures per process, or in a container, where it may report host pids."""
    try:
        running = [
            process for handle in handles for process in library.nvmlDeviceGetComputeRunningProcesses(handle)
        ]
    except library.NVMLError:
        return None
    ours = [process.usedGpuMemory for process in running if process.pid in pids]
    if None in ours or not (ours or is_initial_namespace()):
        return None
    return sum(map(int, ours))


def _find_choices(pids: set[int]) -> set[str | None]:
    """Returns CUDA_VISIBLE_DEVICES of the processes that still run; None stands for a process without it."""
    choices = set()
    for pid in pids:
        with suppress(psutil.Error):
            choices.add(psutil.Process(pid).environ().get("CUDA_VISIBLE_DEVICES"))
    return choices


def _visible(library: Any, handles: Sequence[Any], choices: set[str | None]) -> list[Any]:
    """Returns all GPUs if a process does not restrict them."""
    uuids = [str(library.nvmlDeviceGetUUID(handle)) for handle in handles]
    chosen = {
        index
        for choice in choices
        for index in (range(len(handles)) if choice is None else pick_visible(choice, uuids))
    }
    return [handle for index, handle in enumerate(handles) if index in chosen]


def pick_visible(choice: str, uuids: Sequence[str]) -> list[int]:
    """Returns the indices that CUDA_VISIBLE_DEVICES names; as in CUDA, the first invalid name ends the list."""
    indices: list[int] = []
    for word in map(str.strip, choice.split(",")):
        if word.startswith("MIG"):  # the name does not say which GPU the slice belongs to
            return list(range(len(uuids)))
        named = [index for index, uuid in enumerate(uuids) if word.startswith("GPU-") and uuid.startswith(word)]
        named += [int(word)] if word.isdigit() and int(word) < len(uuids) else []
        if len(named) != 1:
            break
        indices += named
    return indices


def is_initial_namespace() -> bool:
    """Returns True if the driver's pids are ours, which they are not in most containers."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_NAMESPACE
    except OSError:  # not Linux, or a kernel without namespaces
        return True


@cache
def _library() -> Any:
    """Returns None without the package or without a driver."""
    if find_spec("pynvml") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an older package has the same name and warns
        pynvml: Any = import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
