"""What NVIDIA's management library says of the GPUs, from outside the processes that use them; needs no CUDA."""

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
WHOLE = "whole GPUs, by whomever"  # where the driver does not tell processes apart
FIRST_NAMESPACE = 0xEFFFFFFC  # inode of the pids that the driver counts in, fixed by the kernel


@dataclass(frozen=True, slots=True)
class GpuMemory:
    used: int  # bytes
    scope: str  # OWN or WHOLE: figures of one are never held against those of the other


def used_by(pids: Iterable[int]) -> GpuMemory | None:
    """Of these processes, or, where that is not told, of the GPUs that they may see.

    None without a GPU, without processes, and where the GPU shares the system's memory and tells nothing.
    """
    library, wanted = _library(), set(pids)
    if library is None or not wanted:
        return None
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(one) for one in range(library.nvmlDeviceGetCount())]
        own = _of_processes(library, handles, wanted)
        if own is not None or not handles:
            return None if own is None else GpuMemory(own, OWN)
        choices = _find_choices(wanted)
        visible = _visible(library, handles, choices)
        used = sum(int(library.nvmlDeviceGetMemoryInfo(one).used) for one in visible)
        return GpuMemory(used, WHOLE) if choices else None
    except library.NVMLError:
        return None


def keep_one_scope(samples: Iterable[GpuMemory | None]) -> tuple[list[int | None], str | None]:
    """Bytes of one scope, and which: once its own are told, whole GPUs are left out."""
    taken = list(samples)
    scopes = {one.scope for one in taken if one is not None}
    scope = OWN if OWN in scopes else next(iter(scopes), None)
    return [one.used if one is not None and one.scope == scope else None for one in taken], scope


def _of_processes(library: Any, handles: Sequence[Any], pids: set[int]) -> int | None:
    """None where the driver tells no figures; so too in a container, where it may tell pids of the host."""
    try:
        running = [one for handle in handles for one in library.nvmlDeviceGetComputeRunningProcesses(handle)]
    except library.NVMLError:
        return None
    ours = [one.usedGpuMemory for one in running if one.pid in pids]
    if None in ours or not (ours or _is_first_namespace()):
        return None
    return sum(map(int, ours))


def _find_choices(pids: set[int]) -> set[str | None]:
    """CUDA_VISIBLE_DEVICES of those that still run; None of one without it."""
    found = set()
    for pid in pids:
        with suppress(psutil.Error):
            found.add(psutil.Process(pid).environ().get("CUDA_VISIBLE_DEVICES"))
    return found


def _visible(library: Any, handles: Sequence[Any], choices: set[str | None]) -> list[Any]:
    """All where one of the processes made no choice."""
    uuids = [str(library.nvmlDeviceGetUUID(one)) for one in handles]
    chosen = {
        index for one in choices for index in (range(len(handles)) if one is None else pick_visible(one, uuids))
    }
    return [handle for index, handle in enumerate(handles) if index in chosen]


def pick_visible(choice: str, uuids: Sequence[str]) -> list[int]:
    """Numbers of the GPUs that CUDA_VISIBLE_DEVICES names; as for CUDA, the first name of none ends the list."""
    found: list[int] = []
    for word in map(str.strip, choice.split(",")):
        if word.startswith("MIG"):  # a part of a GPU, whose name does not say of which
            return list(range(len(uuids)))
        named = [index for index, uuid in enumerate(uuids) if word.startswith("GPU-") and uuid.startswith(word)]
        named += [int(word)] if word.isdigit() and int(word) < len(uuids) else []
        if len(named) != 1:
            break
        found += named
    return found


def _is_first_namespace() -> bool:
    """Whether the driver means the same by a pid as we do: not in most containers."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == FIRST_NAMESPACE
    except OSError:  # no Linux, or no such thing as a container
        return True


@cache
def _library() -> Any:
    """None without the package, or without a driver."""
    if find_spec("pynvml") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an older package under the same name
        pynvml: Any = import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
