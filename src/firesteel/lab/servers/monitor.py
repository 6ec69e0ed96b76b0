"""Watches a running server from a thread: memory over time, zombies, a log that grows without end; ends nothing."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

from firesteel.lab.memory.gpu import GpuMemory, keep_one_scope, used_by
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.servers.processes import Family, Member

LOOK_S = 0.5  # between looks at the processes that are known
SEARCH_S = 10.0  # between searches for others, which take milliseconds that a benchmark would see
LOG_LOOK_S = 0.05  # a disk fills fast
KEPT_BYTES = 1 << 20  # of a flooded log, at each end
MOST_SAMPLES = 4000  # then every other one is dropped, and looks come half as often


class Vigil:
    def __init__(self, family: Family, log: Path, most_log_bytes: int) -> None:
        self.complaint: Diagnosis | None = None
        self.zombies: dict[int, Member] = {}  # seen at any time
        self._samples: list[tuple[float, int, GpuMemory | None]] = []  # s since the start, bytes of all processes
        self._family, self._log, self._most_log_bytes = family, log, most_log_bytes
        self._look_s = LOOK_S
        self._start = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="vigil", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        if self.complaint is not None and self.complaint.kind == "log-flood":
            shorten(self._log)

    @property
    def peak_bytes(self) -> int:
        return max((rss for _, rss, _ in self._samples), default=0)

    @property
    def memory(self) -> list[tuple[float, int, int | None]]:
        """Seconds since the start, bytes of all processes, bytes on the GPU of `gpu_scope`."""
        gpu, _ = keep_one_scope(used for _, _, used in self._samples)
        return [(at, rss, used) for (at, rss, _), used in zip(self._samples, gpu, strict=True)]

    @property
    def gpu_scope(self) -> str | None:
        return keep_one_scope(used for _, _, used in self._samples)[1]

    def _watch(self) -> None:
        next_look = next_search = self._start
        while not self._is_over.wait(LOG_LOOK_S):
            size = self._log.stat().st_size
            if size > self._most_log_bytes and self.complaint is None:
                self._complain_of_log(size)
            now = time.monotonic()
            if now >= next_look:
                self.look(known_only=now < next_search)
                next_look = now + self._look_s
                next_search = now + SEARCH_S if now >= next_search else next_search

    def look(self, *, known_only: bool = False) -> None:
        """One sample, and whoever is a zombie."""
        members = self._family.members(known_only=known_only)
        rss = sum(one.rss_bytes for one in members)
        for one in members:
            if one.status == "zombie" and one.pid != self._family.leader:
                self.zombies[one.pid] = one
        used = used_by(one.pid for one in members if one.status != "zombie")
        self._samples.append((time.monotonic() - self._start, rss, used))
        if len(self._samples) > MOST_SAMPLES:
            self._samples = self._samples[::2]
            self._look_s *= 2

    def _complain_of_log(self, size: int) -> None:
        """The disk is what must be saved: the server is killed here and now."""
        self.complaint = Diagnosis(
            kind="log-flood", words=f"it floods its log: {size / 1e6:.0f} MB, the limit is "
            f"{self._most_log_bytes / 1e6:.0f} MB", cure="lower its verbosity",
        )  # fmt: skip
        self._family.send(signal.SIGKILL)


def shorten(log: Path, kept_bytes: int = KEPT_BYTES) -> None:
    """Keeps both ends."""
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
