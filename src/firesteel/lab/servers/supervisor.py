"""Starts a server, supervises it and leaves nothing of it behind but its log.

The server runs in its own session and writes directly to a file, or in a container whose output is copied to it.
However it fails, `ServerFailed` says why and where the crash bundle is, and all its processes are gone.
"""

from __future__ import annotations

import atexit
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from firesteel.config import child_environment
from firesteel.errors import UserError
from firesteel.lab.path.place import Place
from firesteel.lab.servers.bundle import (
    CrashEvidence,
    KernelLog,
    ask_nvidia_smi,
    find_secret_flags,
    hide_values,
    read_tail,
    write_crash_bundle,
)
from firesteel.lab.servers.container.faults import diagnose_start
from firesteel.lab.servers.container.launch import ContainerLaunch, StartFailed
from firesteel.lab.servers.container.server import ContainerServer
from firesteel.lab.servers.diagnosis import STACKS, Diagnosis, diagnose_exit
from firesteel.lab.servers.host_server import HostServer
from firesteel.lab.servers.monitor import ServerMonitor
from firesteel.lab.servers.processes import MARKER
from firesteel.lab.servers.server_exit import BY_ITSELF, ServerExit
from firesteel.lab.servers.shutdown import deferred_signals

POLL_S = 0.1
READY_TIMEOUT_S = 5.0  # of one readiness request
DYING_S = 2.0  # from a broken connection to the exit of the process
# Python programs write without buffering, and leave their stacks when they abort or fault.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    words: Sequence[str]
    url: str  # where the server will answer
    name: str = "server"
    environment: Mapping[str, str] = field(default_factory=dict)  # added to this process's
    ready_paths: Sequence[str] = ("/health", "/v1/models")  # the first that exists must answer 200
    ready_s: float = 1800.0  # large models are read, compiled and captured
    grace_s: float = 45.0  # from SIGTERM to SIGKILL
    max_log_bytes: int = 1 << 29
    container: ContainerLaunch | None = None  # None: `words` are a program of this machine

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        return parts.hostname, parts.port or 80


class ServerFailed(UserError):
    """A server that can no longer be tested; the message is its diagnosis."""

    def __init__(self, diagnosis: Diagnosis, bundle: Path | None, *, why_no_bundle: str = "") -> None:
        where = f"; no crash bundle: {why_no_bundle}" if why_no_bundle else ""
        where = where if bundle is None else f"; crash bundle: {bundle}"
        super().__init__(f"{diagnosis.in_words()}{where}")
        self.diagnosis, self.bundle = diagnosis, bundle


class SupervisedServer:
    """`with SupervisedServer(command, folder) as server:` is ready inside the block, and gone after it."""

    def __init__(self, command: ServerCommand, folder: Path) -> None:
        self.command, self.folder = command, folder
        self.log = folder / f"{command.name}.log"
        self.step = "start-up"  # the current request, for the diagnosis
        self.startup_s: float | None = None
        self.ledger: Sequence[Mapping[str, Any]] = ()  # as last received
        self.exit: ServerExit | None = None
        self._kernel_log = KernelLog()
        self._environment = child_environment({**ENVIRONMENT, **command.environment, MARKER: uuid.uuid4().hex})
        self._started = time.monotonic()
        self._prepare()
        with deferred_signals():
            self._server = self._start()
            self.processes = self._server.processes
            self.monitor = ServerMonitor(self.processes, self.log, command.max_log_bytes)
            atexit.register(self.stop)  # in case nothing else stops it

    def __enter__(self) -> SupervisedServer:
        with ExitStack() as stack:
            stack.callback(self.stop)  # also if the wait is interrupted
            self.wait_until_ready()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """None while the server runs."""
        return self._server.poll()

    @property
    def place(self) -> Place:
        """Where its main process runs."""
        return self._server.place

    @property
    def container(self) -> ContainerServer | None:
        return self._server if isinstance(self._server, ContainerServer) else None

    def wait_until_ready(self) -> None:
        """Stops the server and raises ServerFailed if it is not ready in time."""
        deadline = time.monotonic() + self.command.ready_s
        while not self._is_ready():
            self.check()
            if time.monotonic() > deadline:
                words = f"it never became ready: no answer from {self.command.url} in {self.command.ready_s:.0f} s"
                raise self.fail(self._diagnose_running("never-ready", words), show_stacks=True)
            time.sleep(POLL_S)
        self.startup_s = time.monotonic() - self._started
        self.step = "rest"

    def check(self) -> None:
        """Raises ServerFailed if the server exited or had to be killed."""
        if self.monitor.complaint is not None:
            raise self.fail(self.monitor.complaint)
        if self.exit_code is not None:
            raise self.fail(self._diagnose(self.exit_code))

    def fail(self, diagnosis: Diagnosis, *, show_stacks: bool = False) -> ServerFailed:
        """Stops the server and writes a crash bundle; on a full disk there is a diagnosis without a bundle."""
        processes = [process.as_dict() for process in self.processes.describe_all()]
        nvidia_smi = ask_nvidia_smi()  # while its processes can be seen
        stopped = self.stop(show_stacks=show_stacks)
        evidence = CrashEvidence(
            command=list(self.command.words),
            url=self.command.url,
            diagnosis=diagnosis,
            log=self.log,
            environment=self._environment if self.container is None else self.container.environment,
            container={} if self.container is None else self.container.as_dict(),
            processes=processes,
            kernel_messages=self._kernel_log.messages_or_reason(self.processes.names),
            nvidia_smi=nvidia_smi,
            step=self.step,
            stopped=stopped.as_dict(),
            ledger=self.ledger,
        )
        folder = self.folder / "crashes"
        try:
            return ServerFailed(diagnosis, write_crash_bundle(folder, evidence))
        except OSError as error:
            why = f"{folder} cannot be written: {error.strerror or error}; its log is {self.log}"
            return ServerFailed(diagnosis, None, why_no_bundle=why)

    def fail_silent(self, silent_s: float) -> ServerFailed:
        """Fails a server that does not answer: it is dead if it exited meanwhile, else it hangs."""
        with suppress(subprocess.TimeoutExpired):
            self._server.wait(POLL_S)
        return self.fail(self._diagnose(self.exit_code, silent_s), show_stacks=True)

    def fail_disconnected(self, words: str) -> ServerFailed:
        """Fails a server that broke a connection: it may still be exiting."""
        with suppress(subprocess.TimeoutExpired):
            self._server.wait(DYING_S)
        if self.exit_code is not None:
            return self.fail(self._diagnose(self.exit_code))
        return self.fail(self._diagnose_running("unreachable", f"it is running but broke a connection: {words}"))

    def fail_wrong(self, kind: str, words: str) -> ServerFailed:
        """Fails a server that answers wrongly; a cause in its log takes precedence."""
        return self.fail(self._diagnose_running(kind, words))

    def stop(self, *, show_stacks: bool = False) -> ServerExit:
        """Sends SIGTERM, SIGABRT and SIGKILL, each if needed, to all its processes. Repeated calls change nothing.

        `show_stacks`: sends SIGABRT first, because a server that obeys SIGTERM leaves no stacks.
        """
        if self.exit is None:
            start = time.monotonic()
            had_exited = self.exit_code is not None
            how, orphans = self._server.end(self.command.grace_s, show_stacks=show_stacks and not had_exited)
            self.monitor.stop()
            code = self._server.wait()
            self.exit = ServerExit(
                how=BY_ITSELF if had_exited else how,
                exit_code=code,
                seconds=time.monotonic() - start,
                orphans=tuple(orphans),
                port_is_free=is_free(self.command.address),
                container_left=self._server.left,
            )
            atexit.unregister(self.stop)
        return self.exit

    def _prepare(self) -> None:
        """Checks the port, clears the log, and fetches the image of a container; may be interrupted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not is_free(self.command.address):
            words = f"port {self.command.address[1]} is used by another process; the server was not started"
            raise ServerFailed(Diagnosis(kind="port-in-use", words=words, cure="choose another port"), None)
        self.log.unlink(missing_ok=True)
        if self.command.container is not None:
            with self._explained():
                self.command.container.prepare(self.log)

    def _start(self) -> HostServer | ContainerServer:
        with self._explained():
            if (launch := self.command.container) is None:
                return HostServer(self.command.words, self._environment, self.log)
            variables = {**ENVIRONMENT, **self.command.environment}
            return ContainerServer(launch, self._environment[MARKER], variables, self.log)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns a failed start into a ServerFailed without a bundle: nothing ran that could be described."""
        try:
            yield
        except OSError as error:
            words = f"{self.command.words[0]} cannot be started: {error.strerror}"
            cure = "install it on the PATH, or give its location: --engine '/PATH/PROGRAM --port {port}'"
            raise ServerFailed(Diagnosis(kind="not-found", words=words, cure=cure), None) from error
        except StartFailed as error:
            secrets = find_secret_flags(self.command.words).values()
            raise ServerFailed(
                diagnose_start(error.code, hide_values(read_tail(self.log), secrets)), None
            ) from error

    def _diagnose(self, code: int | None, silent_s: float | None = None) -> Diagnosis:
        secrets = find_secret_flags(self.command.words).values()  # engines log their flags
        lines = hide_values(read_tail(self.log), secrets)
        names = self.processes.names
        kernel = self._kernel_log.new_messages(names)
        found = diagnose_exit(code, lines, step=self.step, kernel=kernel, silent_s=silent_s, processes=names)
        return self._server.explain(found)

    def _diagnose_running(self, kind: str, words: str) -> Diagnosis:
        """Returns the cause that its log names, if there is one."""
        diagnosis = self._diagnose(None)
        if diagnosis.kind != "hang":
            return replace(diagnosis, words=f"{diagnosis.words.partition(';')[0]}; {words}")
        cure = STACKS if kind == "never-ready" else "the last lines of its log show how far it got"
        return Diagnosis(kind=kind, words=words, cure=cure, evidence=diagnosis.evidence)

    def _is_ready(self) -> bool:
        for path in self.command.ready_paths:
            status = ask_status(self.command.url + path)
            if status != 404:
                return status == 200
        return False


def ask_status(url: str, timeout_s: float = READY_TIMEOUT_S) -> int | None:
    """Returns the HTTP status, or None if there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, HTTPException):
        return None


def is_free(address: tuple[str, int]) -> bool:
    """Returns True if a server could listen there; connections that are closing do not count."""
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
