"""What a process and its children use while something else happens: CPU, memory, GPU memory; knows no server."""

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
FAMILY_LOOKS = 6  # looks between two searches for new children, which read all of /proc


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int  # resident, of all processes together
    peak_gpu_bytes: int | None  # None without a GPU
    gpu_scope: str | None  # whose those are: gpu.OWN or gpu.WHOLE
    memory: tuple[tuple[float, int, int | None], ...]  # seconds, resident bytes, bytes on the GPU

    @property
    def cores(self) -> float:
        """Kept busy on average."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cores": self.cores}


class Watch:
    """with Watch(pid) as watch: ...; watch.usage()"""

    def __init__(self, pid: int, period_s: float = PERIOD_S) -> None:
        self._root = psutil.Process(pid)
        self._period_s = period_s
        self._cpu_s: dict[int, float] = {}  # by process: those that ended keep their last figure
        self._samples: list[tuple[float, int, gpu.GpuMemory | None]] = []
        self._family: list[psutil.Process] = []
        self._looks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._start_s = time.perf_counter()
        self._look()
        self._before = sum(self._cpu_s.values())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def usage(self) -> Usage:
        on_gpu, scope = gpu.keep_one_scope(used for _, _, used in self._samples)
        return Usage(
            wall_s=self._samples[-1][0], cpu_s=sum(self._cpu_s.values()) - self._before,
            peak_memory_bytes=max(one[1] for one in self._samples), gpu_scope=scope,
            peak_gpu_bytes=max((one for one in on_gpu if one is not None), default=None),
            memory=tuple((at, rss, used) for (at, rss, _), used in zip(self._samples, on_gpu, strict=True)),
        )  # fmt: skip

    def _watch(self) -> None:
        while not self._ended.wait(self._period_s):
            self._look()

    def _look(self) -> None:
        resident = 0
        if not self._looks % FAMILY_LOOKS:
            self._family = family(self._root)
        self._looks += 1
        for process in self._family:
            with suppress(psutil.Error):
                times = process.cpu_times()
                resident += process.memory_info().rss
                self._cpu_s[process.pid] = times.user + times.system
        seconds = round(time.perf_counter() - self._start_s, 3)
        self._samples.append((seconds, resident, gpu.used_by(one.pid for one in self._family)))


def family(root: psutil.Process) -> list[psutil.Process]:
    """A process and all below it; empty when it is gone."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
