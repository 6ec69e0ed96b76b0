"""Finds all processes of one server, including those that left its session or lost their parent.

They share a session unless one leaves it, and a marker in their environment unless one clears it. This process
adopts orphans, so that they can be found and reaped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]

from firesteel.config import hide_secrets

MARKER = "LAB_SERVER"  # variable that every process of a server inherits
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05
FORWARD_S = 0.2  # for a parent to write the last output of its child
RESOURCE_TRACKER = "multiprocessing.resource_tracker"  # Python's; removes shared memory after all others exit


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process at the time it was seen."""

    pid: int
    parent: int
    name: str
    command: str
    status: str
    rss_bytes: int
    threads: int
    waits_in: str  # kernel function, if known

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        return f"{self.name} ({self.pid})"


class ServerProcesses:
    """Searches again on each call; a process seen once is still known after it left the session."""

    def __init__(self, leader: int, marker: str) -> None:
        self.leader, self.marker = leader, marker
        self._known: dict[int, float] = {}  # pid -> creation time
        self.names: dict[int, str] = {}  # of all that were ever described, by pid

    def find(self) -> list[psutil.Process]:
        """Returns all processes, zombies included."""
        processes = [process for process in psutil.process_iter() if self._is_ours(process)]
        for process in processes:
            self._known[process.pid] = process.create_time()
        return processes

    def find_known(self) -> list[psutil.Process]:
        """Returns the known processes that still exist, without a search: cheap enough to be called often."""
        processes = []
        for pid, created in list(self._known.items()):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                processes += [process] if process.create_time() == created else []
        return processes

    def describe_all(self, *, known_only: bool = False) -> list[ProcessInfo]:
        processes = self.find_known() if known_only else self.find()
        described = [info for process in processes if (info := describe(process)) is not None]
        self.names |= {info.pid: info.name for info in described}
        return described

    def list_commands(self) -> list[str]:
        """Returns the command lines, as far as they can be seen."""
        return [process.command for process in self.describe_all()]

    def find_living(self) -> list[psutil.Process]:
        return [process for process in self.find() if status_of(process) not in (psutil.STATUS_ZOMBIE, None)]

    def find_zombies(self) -> list[ProcessInfo]:
        """Returns children that a running server does not wait for."""
        return [
            process
            for process in self.describe_all()
            if process.status == psutil.STATUS_ZOMBIE and process.pid != self.leader
        ]

    def rss_bytes(self) -> int:
        return sum(process.rss_bytes for process in self.describe_all())

    def send(self, number: signal.Signals) -> None:
        for process in self.find_living():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def abort_for_stacks(self, timeout_s: float) -> None:
        """Aborts one process at a time, so that stacks do not interleave.

        Children come before parents, which may be the ones that write their output. Processes that do not catch
        SIGABRT would leave no stack and are skipped.
        """
        aborting = filter(shows_stacks, self.find_living())
        for process in sorted(aborting, key=lambda process: -process.create_time()):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGABRT)
            deadline = time.monotonic() + timeout_s
            while status_of(process) not in (psutil.STATUS_ZOMBIE, None) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            time.sleep(FORWARD_S)

    def reap(self) -> None:
        """Reaps processes that this process adopted."""
        for pid in [process.pid for process in self.find() if process.pid != self.leader]:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def is_gone_within(self, timeout_s: float, reap_leader: Callable[[], object]) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            is_gone = not self.find_living()
            reap_leader()
            self.reap()
            if is_gone:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if self._known.get(process.pid) == process.create_time() or os.getsid(process.pid) == self.leader:
                return True
            return bool(process.environ().get(MARKER) == self.marker)
        except (psutil.Error, ProcessLookupError, PermissionError):
            return False


def adopt_orphans() -> None:
    """Makes this process the parent of descendants that lose theirs; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def describe(process: psutil.Process) -> ProcessInfo | None:
    """Returns None if the process is gone."""
    with suppress(psutil.NoSuchProcess), process.oneshot():
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return ProcessInfo(
            pid=process.pid,
            parent=process.ppid(),
            name=process.name(),
            status=process.status(),
            command="" if is_zombie else " ".join(hide_secrets(process.cmdline())),
            rss_bytes=0 if is_zombie else process.memory_info().rss,
            threads=0 if is_zombie else process.num_threads(),
            waits_in=_read(f"/proc/{process.pid}/wchan"),
        )
    return None


def status_of(process: psutil.Process) -> str | None:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return None


def shows_stacks(process: psutil.Process) -> bool:
    """Returns True if the process catches SIGABRT, as Python does with faulthandler on."""
    try:
        if RESOURCE_TRACKER in " ".join(process.cmdline()):
            return False
    except psutil.Error:
        return False
    lines = _read(f"/proc/{process.pid}/status").splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return any(mask >> (signal.SIGABRT - 1) & 1 for mask in masks)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
