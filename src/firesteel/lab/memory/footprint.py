"""How far processes grew, apart from memory that they had reserved before and only now touched; judges nothing.

An engine sets its cache aside when it starts, and the kernel gives the pages when they are first written; weights
that are mapped from a file come in as they are read. Neither is a leak, however long it takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from firesteel.lab.memory.gpu import used_by

LARGE = 64 << 20  # bytes of a mapping that is looked at


@dataclass(frozen=True, slots=True)
class Region:
    """A range of one process's memory."""

    pid: int
    start: int
    end: int
    resident: int

    def overlaps(self, other: Region) -> bool:
        return self.pid == other.pid and self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    resident: int  # of all the processes
    gpu: int | None  # bytes used; None without one
    regions: tuple[Region, ...]  # the large ones
    gpu_scope: str | None = None  # whose the GPU's are: gpu.OWN or gpu.WHOLE

    @classmethod
    def of(cls, processes: Iterable[psutil.Process]) -> Footprint:
        resident, regions, pids = 0, [], []
        for process in processes:
            pids.append(process.pid)
            with suppress(psutil.Error):
                resident += process.memory_info().rss
                regions += find_regions(process)
        gpu = used_by(pids)
        return cls(
            resident=resident, gpu=None if gpu is None else gpu.used, regions=tuple(regions),
            gpu_scope=None if gpu is None else gpu.scope,
        )  # fmt: skip


def find_regions(process: psutil.Process) -> list[Region]:
    found = []
    for one in process.memory_maps(grouped=False):
        start, end = (int(word, 16) for word in one.addr.split("-"))
        if end - start >= LARGE:
            found.append(Region(process.pid, start, end, one.rss))
    return found


def measure_growth(before: Footprint, after: Footprint) -> tuple[int, int]:
    """Bytes that are new, and bytes that were reserved before and are used since."""
    touched = sum(first_touched(region, after.regions) for region in before.regions)
    return after.resident - before.resident - touched, touched


def first_touched(region: Region, later: Iterable[Region]) -> int:
    """At most what was untouched before: a region may since have been joined with its neighbour."""
    untouched = region.end - region.start - region.resident
    resident = sum(one.resident for one in later if one.overlaps(region))
    return min(untouched, max(0, resident - region.resident))
