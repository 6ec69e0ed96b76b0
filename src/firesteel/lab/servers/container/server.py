"""A server in a container of docker or podman: started detached, followed, and removed by its id."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from firesteel.lab.path.place import Place
from firesteel.lab.servers.container.guard import ContainerGuard
from firesteel.lab.servers.container.launch import ContainerLaunch
from firesteel.lab.servers.container.place import ContainerPlace
from firesteel.lab.servers.container.processes import ContainerProcesses
from firesteel.lab.servers.container.runtime import LABEL
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.servers.processes import ProcessInfo
from firesteel.lab.servers.server_exit import FOR_STACKS, ON_SIGTERM

ABORT_S = 3.0  # to write stacks
LOG_S = 5.0  # until the last lines of an exited container have been copied
POLL_S = 0.05
KILLED = 128 + signal.SIGKILL  # exit code of a container that somebody else removed
OUT_OF_MEMORY_CURE = "raise the container's memory limit (--memory), or use a smaller cache or model"


class ContainerServer:
    def __init__(self, launch: ContainerLaunch, server: str, environment: Mapping[str, str], log: Path) -> None:
        self.launch, self.runtime, self.log = launch, launch.runtime, log
        self.left = ""  # why its container is still there
        self.container = ""
        self._code: int | None = None
        self._label = f"{LABEL}={server}"
        self._guard = ContainerGuard(self.runtime, server)
        try:
            self.container = launch.start(server, environment, log)
            self._state = self.runtime.inspect(self.container) or {}
            pid = int(self._state.get("State", {}).get("Pid") or 0)
            self.processes = ContainerProcesses(self.runtime, self.container, pid)
            self._follower = self.runtime.follow(self.container, log)
            self._waiter = self.runtime.wait(self.container)
        except BaseException:
            self._remove_all()
            raise

    @property
    def image(self) -> str:
        config = self._state.get("Config", {})
        return str(self._state.get("ImageName") or config.get("Image") or self.launch.image)

    @property
    def digest(self) -> str:
        return self.runtime.find_digest(str(self._state.get("Image", "")))

    @property
    def place(self) -> Place:
        return ContainerPlace.of(self.runtime, self.container, self.processes, self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its configuration; an entry point may add to them."""
        variables = self._state.get("Config", {}).get("Env") or []
        return {name: value for name, _, value in (variable.partition("=") for variable in variables)}

    def as_dict(self) -> dict[str, Any]:
        """Describes it for a crash bundle."""
        state = self._state.get("State", {})
        return {"id": self.container, "image": self.image, "digest": self.digest, "state": state}

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs."""
        if self._code is None and self._waiter.poll() is not None:
            self._code = self._read_code()
            if self._code is None:
                self._waiter = self.runtime.wait(self.container)  # the runtime was restarted under it
                return None
            with suppress(subprocess.TimeoutExpired):
                self._follower.wait(LOG_S)
            self._state = self.runtime.inspect(self.container) or self._state
        return self._code

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired if it still runs."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("docker wait", timeout_s or 0.0)
            time.sleep(POLL_S)
        return code

    def end(self, grace_s: float, *, show_stacks: bool) -> tuple[str, list[ProcessInfo]]:
        """Stops it by its id, and removes it; returns how it exited. No process outlives the first one."""
        how = self._stop(grace_s, show_stacks=show_stacks)
        self.wait(grace_s + LOG_S)
        self._remove_all()
        return how, []

    def explain(self, diagnosis: Diagnosis) -> Diagnosis:
        """Adds what the runtime knows: the memory limit of the container, or why it could not run its command."""
        state = self._state.get("State", {})
        if state.get("OOMKilled"):
            words = f"a process of its container was killed at the container's memory limit; {diagnosis.words}"
            return replace(diagnosis, kind="out-of-memory", words=words, cure=OUT_OF_MEMORY_CURE)
        if error := str(state.get("Error") or ""):
            return replace(diagnosis, evidence=(*diagnosis.evidence, error))
        return diagnosis

    def _stop(self, grace_s: float, *, show_stacks: bool) -> str:
        if self.poll() is not None:
            return ON_SIGTERM
        stops = [(self._stop_signal, grace_s, ON_SIGTERM), (signal.SIGABRT, ABORT_S, "on SIGABRT")]
        if show_stacks:
            stops = [(signal.SIGABRT, ABORT_S, FOR_STACKS), stops[0]]
        for number, timeout_s, how in stops:
            self.runtime.kill(self.container, number)
            with suppress(subprocess.TimeoutExpired):
                self.wait(timeout_s)
                return how
        self.runtime.kill(self.container, signal.SIGKILL)
        return "on SIGKILL"

    @property
    def _stop_signal(self) -> signal.Signals:
        """SIGTERM unless the image names another one."""
        stated = self._state.get("Config", {}).get("StopSignal") or "SIGTERM"
        with suppress(KeyError, ValueError):
            return signal.Signals(int(stated)) if str(stated).isdigit() else signal.Signals[str(stated)]
        return signal.SIGTERM

    def _read_code(self) -> int | None:
        """Returns the code that `wait` printed, or asks again; None if it still runs."""
        assert self._waiter.stdout is not None
        text = self._waiter.stdout.read().decode(errors="replace").strip()
        self._waiter.stdout.close()
        if self._waiter.returncode == 0 and text.isdigit():
            return int(text)
        known = self.runtime.inspect(self.container)
        if known is None:
            return KILLED
        state = known.get("State", {})
        return int(state.get("ExitCode", KILLED)) if state.get("Status") in ("exited", "dead") else None

    def _remove_all(self) -> None:
        """Removes its container, and those that its start created beside it."""
        known = [self.container] if self.container else []
        containers = dict.fromkeys([*known, *self.runtime.find_labelled(self._label)])
        reasons = [
            f"{container[:12]}: {why}" for container in containers if (why := self.runtime.remove(container))
        ]
        self.launch.clean_up()
        self.left = "; ".join(reasons)
        if not self.left:
            self._guard.dismiss()
