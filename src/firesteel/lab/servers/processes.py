"""The processes that come of one server, wherever they hide; knows no server.

They share a session unless one leaves it, and a mark in their environment unless one clears it. One that lost its
parent is adopted by this process, so that it can be found and reaped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]

from firesteel.config import hide_secrets

MARK = "LAB_SERVER"  # variable that every process of a server inherits
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05
FORWARD_S = 0.2  # for a parent to write down what its child said last
KEEPER = "multiprocessing.resource_tracker"  # of Python: removes shared memory once all others are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process as it was seen."""

    pid: int
    parent: int
    name: str
    command: str
    status: str
    rss_bytes: int
    threads: int
    waits_in: str  # the kernel's function, where it says so

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        return f"{self.name} ({self.pid})"


class Family:
    """Found again at each look; who was seen once is still known after it left the session."""

    def __init__(self, leader: int, mark: str) -> None:
        self.leader, self.mark = leader, mark
        self._known: dict[int, float] = {}  # pid -> when it began

    def find(self) -> list[psutil.Process]:
        """Zombies too."""
        found = [one for one in psutil.process_iter() if self._is_ours(one)]
        for one in found:
            self._known[one.pid] = one.create_time()
        return found

    def recall(self) -> list[psutil.Process]:
        """Those known that still are, without a look at the others: cheap enough to be done often."""
        found = []
        for pid, began in list(self._known.items()):
            with suppress(psutil.NoSuchProcess):
                one = psutil.Process(pid)
                found += [one] if one.create_time() == began else []
        return found

    def members(self, *, known_only: bool = False) -> list[Member]:
        found = self.recall() if known_only else self.find()
        return [member for one in found if (member := describe(one)) is not None]

    def living(self) -> list[psutil.Process]:
        return [one for one in self.find() if status_of(one) not in (psutil.STATUS_ZOMBIE, None)]

    def zombies(self) -> list[Member]:
        """Of a server that runs: children that it does not wait for."""
        return [one for one in self.members() if one.status == psutil.STATUS_ZOMBIE and one.pid != self.leader]

    def rss_bytes(self) -> int:
        return sum(member.rss_bytes for member in self.members())

    def send(self, number: signal.Signals) -> None:
        for one in self.living():
            with suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def abort_for_stacks(self, patience_s: float) -> None:
        """One after the other, so that no stack stands between the lines of another; children before parents,
        which may be the ones that write their output down. One that does not catch SIGABRT would leave nothing.
        """
        for one in sorted(filter(shows_stacks, self.living()), key=lambda one: -one.create_time()):
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGABRT)
            deadline = time.monotonic() + patience_s
            while status_of(one) not in (psutil.STATUS_ZOMBIE, None) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            time.sleep(FORWARD_S)

    def reap(self) -> None:
        """Those that were left to this process."""
        for pid in [one.pid for one in self.find() if one.pid != self.leader]:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def is_gone_within(self, patience_s: float, reap_leader: Callable[[], object]) -> bool:
        deadline = time.monotonic() + patience_s
        while True:
            is_gone = not self.living()
            reap_leader()
            self.reap()
            if is_gone:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)

    def _is_ours(self, one: psutil.Process) -> bool:
        try:
            if self._known.get(one.pid) == one.create_time() or os.getsid(one.pid) == self.leader:
                return True
            return bool(one.environ().get(MARK) == self.mark)
        except (psutil.Error, ProcessLookupError, PermissionError):
            return False


def adopt_orphans() -> None:
    """Makes this process the parent of those of its descendants that lose theirs; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def describe(one: psutil.Process) -> Member | None:
    """None of one that is gone."""
    with suppress(psutil.NoSuchProcess), one.oneshot():
        is_zombie = one.status() == psutil.STATUS_ZOMBIE
        return Member(
            pid=one.pid, parent=one.ppid(), name=one.name(), status=one.status(),
            command="" if is_zombie else " ".join(hide_secrets(one.cmdline())),
            rss_bytes=0 if is_zombie else one.memory_info().rss, threads=0 if is_zombie else one.num_threads(),
            waits_in=_read(f"/proc/{one.pid}/wchan"),
        )  # fmt: skip
    return None


def status_of(one: psutil.Process) -> str | None:
    try:
        return str(one.status())
    except psutil.NoSuchProcess:
        return None


def shows_stacks(one: psutil.Process) -> bool:
    """Whether it catches SIGABRT, as Python does with faulthandler on."""
    try:
        if KEEPER in " ".join(one.cmdline()):
            return False
    except psutil.Error:
        return False
    lines = _read(f"/proc/{one.pid}/status").splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return any(mask >> (signal.SIGABRT - 1) & 1 for mask in masks)


def tree_in_words(members: Iterable[Member | Mapping[str, Any]]) -> list[str]:
    rows = [one.as_dict() if isinstance(one, Member) else one for one in members]
    return [
        f"{one['pid']} (of {one['parent']}) {one['status']} {one['rss_bytes'] / 1e6:.0f} MB {one['command']}"
        for one in rows
    ]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
