"""The processes of a container, as this machine sees them."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from firesteel.config import hide_secrets
from firesteel.lab.servers.container.runtime import ContainerRuntime, TopRow
from firesteel.lab.servers.processes import ProcessInfo, ServerProcesses


class ContainerProcesses(ServerProcesses):
    """Processes of this machine if the daemon runs here; else, as in a virtual machine, what `top` shows.

    In the second case `leader` is 0 and their memory is not measured between two searches.
    """

    def __init__(self, runtime: ContainerRuntime, container: str, pid: int) -> None:
        super().__init__(leader=pid if is_here(pid, container) else 0, marker="")
        self._runtime, self._container = runtime, container
        self._rows: list[TopRow] = []

    def find(self) -> list[psutil.Process]:
        """Returns the first process and its descendants: orphans become children of the first one."""
        found: list[psutil.Process] = []
        if self.leader:
            with suppress(psutil.Error):
                first = psutil.Process(self.leader)
                if self._known.setdefault(first.pid, first.create_time()) == first.create_time():
                    found = [first, *first.children(recursive=True)]
        for process in found:
            with suppress(psutil.Error):
                self._known[process.pid] = process.create_time()
        return found

    def describe_all(self, *, known_only: bool = False) -> list[ProcessInfo]:
        if self.leader:
            return super().describe_all(known_only=known_only)
        if not known_only:
            self._rows = self._runtime.list_processes(self._container)
        return [_describe(row) for row in self._rows]

    def send(self, number: signal.Signals) -> None:
        """Sends the signal to the first process; SIGKILL ends them all."""
        self._runtime.kill(self._container, number)


def is_here(pid: int, container: str) -> bool:
    """Returns True if this pid of the runtime's machine belongs to this machine.

    The parent of the first process has the container's id among its arguments (containerd-shim, conmon).
    """
    with suppress(psutil.Error, OSError):
        parent = psutil.Process(pid).parent() if pid else None
        of_parent = [] if parent is None else parent.cmdline()
        return pid > 0 and (container in of_parent or container in Path(f"/proc/{pid}/cgroup").read_text("utf-8"))
    return False


def _describe(row: TopRow) -> ProcessInfo:
    return ProcessInfo(
        pid=row.pid,
        parent=row.parent,
        name=Path(row.command.split()[0]).name,
        command=" ".join(hide_secrets(row.command.split())),
        status=psutil.STATUS_ZOMBIE if row.state == "Z" else psutil.STATUS_RUNNING,
        rss_bytes=row.rss_bytes,
        threads=0,
        waits_in="",
    )
