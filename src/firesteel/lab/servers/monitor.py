"""Monitors a running server from a thread: memory over time, zombies, and a log that grows without limit."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

from firesteel.lab.memory.gpu import GpuMemory, keep_one_scope, used_by
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.servers.processes import ProcessInfo, ServerProcesses

SAMPLE_S = 0.5  # between samples of the known processes
SEARCH_S = 10.0  # between searches for new ones, which take milliseconds that a benchmark would notice
LOG_CHECK_S = 0.05  # a disk fills up quickly
KEPT_BYTES = 1 << 20  # of a flooded log, at each end
MAX_SAMPLES = 4000  # beyond it every other sample is dropped, and the interval doubles


class ServerMonitor:
    def __init__(self, processes: ServerProcesses, log: Path, max_log_bytes: int) -> None:
        self.complaint: Diagnosis | None = None  # why the monitor killed the server
        self.zombies: dict[int, ProcessInfo] = {}  # seen at any time, by pid
        self._samples: list[tuple[float, int, GpuMemory | None]] = []  # seconds, bytes of all processes, GPU
        self._processes, self._log, self._max_log_bytes = processes, log, max_log_bytes
        self._sample_s = SAMPLE_S
        self._start = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        if self.complaint is not None and self.complaint.kind == "log-flood":
            shorten(self._log)

    @property
    def peak_bytes(self) -> int:
        return max((resident for _, resident, _ in self._samples), default=0)

    @property
    def memory(self) -> list[tuple[float, int, int | None]]:
        """Seconds since the start, bytes of all processes, and bytes on the GPU of `gpu_scope`."""
        on_gpu, _ = keep_one_scope(used for _, _, used in self._samples)
        return [(at, resident, used) for (at, resident, _), used in zip(self._samples, on_gpu, strict=True)]

    @property
    def gpu_scope(self) -> str | None:
        return keep_one_scope(used for _, _, used in self._samples)[1]

    def _run(self) -> None:
        next_sample = next_search = self._start
        while not self._is_over.wait(LOG_CHECK_S):
            size = self._log.stat().st_size
            if size > self._max_log_bytes and self.complaint is None:
                self._kill_for_log(size)
            now = time.monotonic()
            if now >= next_sample:
                self.sample(known_only=now < next_search)
                next_sample = now + self._sample_s
                next_search = now + SEARCH_S if now >= next_search else next_search

    def sample(self, *, known_only: bool = False) -> None:
        """Takes one sample of memory and notes zombies."""
        members = self._processes.describe_all(known_only=known_only)
        resident = sum(process.rss_bytes for process in members)
        for process in members:
            if process.status == "zombie" and process.pid != self._processes.leader:
                self.zombies[process.pid] = process
        used = used_by(process.pid for process in members if process.status != "zombie")
        self._samples.append((time.monotonic() - self._start, resident, used))
        if len(self._samples) > MAX_SAMPLES:
            self._samples = self._samples[::2]
            self._sample_s *= 2

    def _kill_for_log(self, size: int) -> None:
        """Kills the server at once, because the disk must be kept from filling up."""
        limit = f"the limit is {self._max_log_bytes / 1e6:.0f} MB"
        self.complaint = Diagnosis(
            kind="log-flood",
            words=f"it floods its log: {size / 1e6:.0f} MB, {limit}",
            cure="lower its verbosity",
        )
        self._processes.send(signal.SIGKILL)


def shorten(log: Path, kept_bytes: int = KEPT_BYTES) -> None:
    """Keeps both ends of a log."""
    size = log.stat().st_size
    if size <= 2 * kept_bytes:
        return
    with log.open("r+b") as file:
        head = file.read(kept_bytes)
        file.seek(-kept_bytes, 2)
        tail = file.read()
        left_out = f"\n... {size - 2 * kept_bytes} bytes left out ...\n".encode()
        file.seek(0)
        file.write(head + left_out + tail)
        file.truncate()
