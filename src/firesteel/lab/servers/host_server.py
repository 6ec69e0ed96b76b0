"""A server whose processes are children of this one, in a session of their own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from firesteel.lab.path.place import HostPlace, Place
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.servers.processes import MARKER, ProcessInfo, ServerProcesses, adopt_orphans
from firesteel.lab.servers.server_exit import FOR_STACKS, ON_SIGTERM

ABORT_S = 3.0  # to write stacks


class HostServer:
    left = ""  # nothing that the killed processes could leave is checked here

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Raises OSError if the program cannot be started."""
        adopt_orphans()
        with log.open("ab", buffering=0) as sink:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        with suppress(ProcessLookupError, PermissionError):  # no core dumps
            resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))
        self.processes = ServerProcesses(self._process.pid, environment[MARKER])

    @property
    def place(self) -> Place:
        """The environment and interpreter of its first Python process."""
        leader = self.processes.leader
        return HostPlace.of(sorted(self.processes.find_living(), key=lambda process: process.pid != leader))

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired if it still runs."""
        return self._process.wait(timeout_s)

    def explain(self, diagnosis: Diagnosis) -> Diagnosis:
        """Returns the diagnosis: its exit code and its log are all there is."""
        return diagnosis

    def end(self, grace_s: float, *, show_stacks: bool) -> tuple[str, list[ProcessInfo]]:
        """Returns how the server exited, and the processes that had to be killed after the first one was gone."""
        reap = self._process.poll
        if show_stacks:
            self.processes.abort_for_stacks(ABORT_S)
        was_aborted = show_stacks and self.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        on_term = FOR_STACKS if was_aborted else ON_SIGTERM
        if self.processes.is_gone_within(grace_s, reap):
            return on_term, []
        is_leader_gone = self.poll() is not None
        left = self.processes.describe_all() if is_leader_gone and not was_aborted else []
        orphans = [process for process in left if process.status != "zombie"]
        for number, timeout_s in ((signal.SIGABRT, ABORT_S), (signal.SIGKILL, grace_s)):
            self.processes.send(number)
            if self.processes.is_gone_within(timeout_s, reap):
                return (on_term if is_leader_gone else f"on {number.name}"), orphans
        return "on SIGKILL", orphans
