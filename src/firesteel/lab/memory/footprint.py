"""Growth of processes, without memory that they had reserved before and touched for the first time since.

An engine reserves its cache when it starts, and the kernel provides the pages when they are first written; weights
mapped from a file become resident as they are read. Neither is a leak, however long it takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from firesteel.lab.memory.gpu import used_by

LARGE = 64 << 20  # bytes from which a mapping is tracked


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """An address range of one process."""

    pid: int
    start: int
    end: int
    resident: int

    def overlaps(self, other: MemoryRegion) -> bool:
        return self.pid == other.pid and self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    resident: int  # bytes of all processes
    gpu: int | None  # bytes used; None without a GPU
    regions: tuple[MemoryRegion, ...]  # the large ones
    gpu_scope: str | None = None  # what the GPU's bytes include: gpu.OWN or gpu.WHOLE

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
            resident=resident,
            gpu=None if gpu is None else gpu.used,
            regions=tuple(regions),
            gpu_scope=None if gpu is None else gpu.scope,
        )


def find_regions(process: psutil.Process) -> list[MemoryRegion]:
    regions = []
    for mapping in process.memory_maps(grouped=False):
        start, end = (int(word, 16) for word in mapping.addr.split("-"))
        if end - start >= LARGE:
            regions.append(MemoryRegion(process.pid, start, end, mapping.rss))
    return regions


def measure_growth(before: Footprint, after: Footprint) -> tuple[int, int]:
    """Returns the new bytes, and the bytes reserved before that were touched since."""
    touched = sum(first_touched(region, after.regions) for region in before.regions)
    return after.resident - before.resident - touched, touched


def first_touched(region: MemoryRegion, later: Iterable[MemoryRegion]) -> int:
    """Returns at most what was untouched before: a region may have been merged with its neighbour since."""
    untouched = region.end - region.start - region.resident
    resident = sum(other.resident for other in later if other.overlaps(region))
    return min(untouched, max(0, resident - region.resident))
