"""Starts any server, watches it and leaves no trace of it but its log; knows no engine.

The server runs in a session of its own and writes straight to a file. Whatever way it fails, `ServerFailed` says
why in words and where the crash bundle lies, and the machine is clean again.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from firesteel.config import child_environment
from firesteel.errors import UserError
from firesteel.lab.servers.bundle import (
    KernelWatch,
    Remains,
    ask_nvidia_smi,
    bundle_up,
    find_secret_flags,
    hide_values,
    read_tail,
)  # fmt: skip
from firesteel.lab.servers.diagnosis import STACKS, Diagnosis, diagnose_exit
from firesteel.lab.servers.monitor import Vigil
from firesteel.lab.servers.processes import MARK, Family, Member, adopt_orphans
from firesteel.lab.servers.shutdown import undisturbed

POLL_S = 0.1
ASK_S = 5.0  # for one answer to the question whether it is ready
DYING_S = 2.0  # from a broken connection to the end of the process
ABORT_S = 3.0  # for stacks to be written
# Python programs write at once and leave their stacks when they abort or fault.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
FOR_STACKS = "on SIGABRT, sent first for its stacks"  # of one that hangs: how it ended says nothing of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    words: Sequence[str]
    url: str  # where it will answer
    name: str = "server"
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of ours
    ready_paths: Sequence[str] = ("/health", "/v1/models")  # the first that exists must answer 200
    ready_s: float = 1800.0  # large models are read, compiled and captured
    grace_s: float = 45.0  # from the request to stop until it is forced
    most_log_bytes: int = 1 << 29

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        return parts.hostname, parts.port or 80


class ServerFailed(UserError):
    """A server that is no longer worth asking; the message is its diagnosis."""

    def __init__(self, diagnosis: Diagnosis, bundle: Path | None, *, why_no_bundle: str = "") -> None:
        where = f"; no crash bundle: {why_no_bundle}" if why_no_bundle else ""
        where = where if bundle is None else f"; crash bundle: {bundle}"
        super().__init__(f"{diagnosis.in_words()}{where}")
        self.diagnosis, self.bundle = diagnosis, bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """How a server ended."""

    how: str  # "by itself", "on SIGTERM", FOR_STACKS, "on SIGABRT", "on SIGKILL"
    exit_code: int | None
    seconds: float
    orphans: tuple[Member, ...] = ()  # outlived the process that was started; ended by force
    port_is_free: bool = True

    @property
    def is_clean(self) -> bool:
        return self.how in ("by itself", "on SIGTERM") and not self.orphans and self.port_is_free

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_clean": self.is_clean}

    def in_words(self) -> str:
        orphans = [f"left {', '.join(one.in_words() for one in self.orphans)} behind"] if self.orphans else []
        port = [] if self.port_is_free else ["its port is still taken"]
        return "; ".join([f"ended {self.how} within {self.seconds:.1f} s", *orphans, *port])


class Supervised:
    """`with Supervised(command, folder) as server:` is ready inside, and gone after."""

    def __init__(self, command: ServerCommand, folder: Path) -> None:
        self.command, self.folder = command, folder
        self.log = folder / f"{command.name}.log"
        self.step = "start-up"  # what it is asked to do now, for the diagnosis
        self.startup_s: float | None = None
        self.ledger: Sequence[Mapping[str, Any]] = ()  # as last heard
        self.stopped: Stopped | None = None
        self._kernel = KernelWatch()
        self._environment = child_environment({**ENVIRONMENT, **command.environment, MARK: uuid.uuid4().hex})
        self._started = time.monotonic()
        with undisturbed():
            self._process = self._start()
            self.family = Family(self._process.pid, self._environment[MARK])
            self.vigil = Vigil(self.family, self.log, command.most_log_bytes)
            atexit.register(self.stop)  # whatever ends this process before somebody else does so

    def __enter__(self) -> Supervised:
        with ExitStack() as stack:
            stack.callback(self.stop)  # whatever ends the wait, an interrupt too
            self.wait_until_ready()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait_until_ready(self) -> None:
        """Fails, stops and bundles up if it is not ready in time."""
        deadline = time.monotonic() + self.command.ready_s
        while not self._is_ready():
            self.check()
            if time.monotonic() > deadline:
                words = f"it never became ready: no answer from {self.command.url} in {self.command.ready_s:.0f} s"
                raise self.fail(self._diagnose_silence("never-ready", words), show_stacks=True)
            time.sleep(POLL_S)
        self.startup_s = time.monotonic() - self._started
        self.step = "rest"

    def check(self) -> None:
        """Fails if it ended, or has to be ended."""
        if self.vigil.complaint is not None:
            raise self.fail(self.vigil.complaint)
        if self.exit_code is not None:
            raise self.fail(self._diagnose(self.exit_code))

    def fail(self, diagnosis: Diagnosis, *, show_stacks: bool = False) -> ServerFailed:
        """Ends it and bundles up what it leaves; a full disk takes the bundle, but not the diagnosis."""
        processes = [member.as_dict() for member in self.family.members()]
        nvidia_smi = ask_nvidia_smi()  # while its processes are there to be seen
        stopped = self.stop(show_stacks=show_stacks)
        remains = Remains(
            command=list(self.command.words), url=self.command.url, diagnosis=diagnosis, log=self.log,
            environment=self._environment, processes=processes, kernel_messages=self._kernel.told(),
            nvidia_smi=nvidia_smi, step=self.step, stopped=stopped.as_dict(), ledger=self.ledger,
        )  # fmt: skip
        folder = self.folder / "crashes"
        try:
            return ServerFailed(diagnosis, bundle_up(folder, remains))
        except OSError as error:
            why = f"{folder} cannot be written: {error.strerror or error}; its log is {self.log}"
            return ServerFailed(diagnosis, None, why_no_bundle=why)

    def fail_silent(self, silent_s: float) -> ServerFailed:
        """Of one that does not answer: dead if it ended meanwhile, else it hangs."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(POLL_S)
        return self.fail(self._diagnose(self.exit_code, silent_s), show_stacks=True)

    def fail_broken(self, words: str) -> ServerFailed:
        """Of one that broke a connection: what broke it may still be dying."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DYING_S)
        if self.exit_code is not None:
            return self.fail(self._diagnose(self.exit_code))
        return self.fail(self._diagnose_silence("unreachable", f"it runs but broke a connection: {words}"))

    def fail_wrong(self, kind: str, words: str) -> ServerFailed:
        """Of one that answers, but not as it should: a cause that its log names comes first."""
        return self.fail(self._diagnose_silence(kind, words))

    def stop(self, *, show_stacks: bool = False) -> Stopped:
        """Asks, then aborts, then kills the whole family; the same answer however often it is asked.

        `show_stacks`: aborts first, for one that obeys SIGTERM leaves none.
        """
        if self.stopped is None:
            start = time.monotonic()
            was_over = self.exit_code is not None
            how, orphans = self._end(show_stacks=show_stacks and not was_over)
            self.vigil.end()
            code = self._process.wait()
            self.stopped = Stopped(
                how="by itself" if was_over else how, exit_code=code, seconds=time.monotonic() - start,
                orphans=tuple(orphans), port_is_free=is_free(self.command.address),
            )  # fmt: skip
            atexit.unregister(self.stop)
        return self.stopped

    def _start(self) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not is_free(self.command.address):
            words = f"port {self.command.address[1]} is taken by another process; the server was not started"
            raise ServerFailed(Diagnosis(kind="port-in-use", words=words, cure="choose another port"), None)
        adopt_orphans()
        self.log.unlink(missing_ok=True)
        with self.log.open("ab", buffering=0) as log:
            try:
                process = subprocess.Popen(
                    self.command.words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True, env=self._environment,
                )  # fmt: skip
            except OSError as error:
                words = f"{self.command.words[0]} cannot be started: {error.strerror}"
                cure = "install it where PATH finds it, or say where it is: --engine '/PATH/PROGRAM --port {port}'"
                raise ServerFailed(Diagnosis(kind="not-found", words=words, cure=cure), None) from error
        with suppress(ProcessLookupError, PermissionError):  # its memory as a file is of no use here
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        return process

    def _end(self, *, show_stacks: bool) -> tuple[str, list[Member]]:
        """How it ended, and who had to be forced though the first process was gone."""
        reap = self._process.poll
        if show_stacks:
            self.family.abort_for_stacks(ABORT_S)
        was_aborted = show_stacks and self.exit_code is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        if self.family.is_gone_within(self.command.grace_s, reap):
            return FOR_STACKS if was_aborted else "on SIGTERM", []
        is_leader_gone = self.exit_code is not None
        left = self.family.members() if is_leader_gone and not was_aborted else []
        orphans = [one for one in left if one.status != "zombie"]
        for number, patience_s in ((signal.SIGABRT, ABORT_S), (signal.SIGKILL, self.command.grace_s)):
            self.family.send(number)
            if self.family.is_gone_within(patience_s, reap):
                on_term = FOR_STACKS if was_aborted else "on SIGTERM"
                return (on_term if is_leader_gone else f"on {number.name}"), orphans
        return "on SIGKILL", orphans

    def _diagnose(self, code: int | None, silent_s: float | None = None) -> Diagnosis:
        secrets = find_secret_flags(self.command.words).values()  # engines write their flags into their logs
        lines = hide_values(read_tail(self.log), secrets)
        return diagnose_exit(code, lines, step=self.step, kernel=self._kernel.news(), silent_s=silent_s)

    def _diagnose_silence(self, kind: str, words: str) -> Diagnosis:
        """What its log names, where it names something."""
        found = self._diagnose(None)
        if found.kind != "hang":
            return replace(found, words=f"{found.words.partition(';')[0]}; {words}")
        cure = STACKS if kind == "never-ready" else "the last lines of its log say how far it came"
        return Diagnosis(kind=kind, words=words, cure=cure,
                         evidence=found.evidence)  # fmt: skip

    def _is_ready(self) -> bool:
        for path in self.command.ready_paths:
            status = ask_status(self.command.url + path)
            if status != 404:
                return status == 200
        return False


def ask_status(url: str, patience_s: float = ASK_S) -> int | None:
    """None where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=patience_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, HTTPException):
        return None


def is_free(address: tuple[str, int]) -> bool:
    """Whether a server could listen there; connections that are closing do not count."""
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
