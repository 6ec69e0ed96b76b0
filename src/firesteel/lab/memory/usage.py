"""Samples CPU, memory and GPU memory of a process and its children in a thread."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import psutil  # type: ignore[import-untyped]

from firesteel.lab.memory import gpu

PERIOD_S = 0.5
SEARCH_EVERY = 6  # samples between two searches for new children, which read all of /proc


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0  # resident, of all processes together
    peak_gpu_bytes: int | None = None  # None without a GPU
    gpu_scope: str | None = None  # gpu.OWN or gpu.WHOLE; earlier versions had gpu.WHOLE and did not say so
    memory: tuple[tuple[float, int, int | None], ...] = ()  # seconds, resident bytes, GPU bytes

    @property
    def cores(self) -> float:
        """Average number of busy CPU cores."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cores": self.cores}


class UsageSampler:
    """`with UsageSampler(pid) as sampler: ...`, then `sampler.usage()`."""

    def __init__(self, pid: int, period_s: float = PERIOD_S) -> None:
        self._root = psutil.Process(pid)
        self._period_s = period_s
        self._cpu_s: dict[int, float] = {}  # by pid; processes that ended keep their last value
        self._samples: list[tuple[float, int, gpu.GpuMemory | None]] = []
        self._processes: list[psutil.Process] = []
        self._num_samples = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> UsageSampler:
        self._start_s = time.perf_counter()
        self._sample()
        self._before = sum(self._cpu_s.values())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()

    def usage(self) -> ResourceUsage:
        on_gpu, scope = gpu.keep_one_scope(used for _, _, used in self._samples)
        return ResourceUsage(
            wall_s=self._samples[-1][0],
            cpu_s=sum(self._cpu_s.values()) - self._before,
            peak_memory_bytes=max(resident for _, resident, _ in self._samples),
            gpu_scope=scope,
            peak_gpu_bytes=max((used for used in on_gpu if used is not None), default=None),
            memory=tuple((at, rss, used) for (at, rss, _), used in zip(self._samples, on_gpu, strict=True)),
        )

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            self._sample()

    def _sample(self) -> None:
        resident = 0
        if not self._num_samples % SEARCH_EVERY:
            self._processes = find_tree(self._root)
        self._num_samples += 1
        for process in self._processes:
            with suppress(psutil.Error):
                times = process.cpu_times()
                resident += process.memory_info().rss
                self._cpu_s[process.pid] = times.user + times.system
        seconds = round(time.perf_counter() - self._start_s, 3)
        self._samples.append((seconds, resident, gpu.used_by(process.pid for process in self._processes)))


def find_tree(root: psutil.Process) -> list[psutil.Process]:
    """Returns a process and its descendants; empty if the process is gone."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
