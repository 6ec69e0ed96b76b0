"""Commands of docker and podman about one container."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

COMMAND_S = 60.0
EXEC_S = 180.0  # importing vLLM takes a minute on a busy machine
LABEL = "firesteel.lab"  # of every container that the lab starts; its value names the server
UNKNOWN = re.compile("no such (container|object)", re.IGNORECASE)
PS_COLUMNS = ("pid", "ppid", "rss", "stat", "args")  # of docker, whose top takes options of ps
TOP_COLUMNS = ("hpid", "ppid", "rss", "state", "args")  # of podman


class CommandOutput(NamedTuple):
    code: int
    output: str
    error: str


class TopRow(NamedTuple):
    pid: int  # on the machine of the daemon
    parent: int
    rss_bytes: int
    state: str  # first letter as ps has it: Z is a zombie
    command: str


@dataclass(frozen=True)
class ContainerRuntime:
    program: tuple[str, ...]  # such as ("docker",) or ("sudo", "podman")

    def ask(self, *words: str, timeout_s: float = COMMAND_S) -> CommandOutput:
        """Runs a command in its own session, so that Ctrl-C does not interrupt it halfway."""
        try:
            done = subprocess.run(
                [*self.program, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return CommandOutput(-1, "", f"{words[0]} did not finish in {timeout_s:.0f} s")
        return CommandOutput(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    @cached_property
    def is_podman(self) -> bool:
        """True also if `docker` is podman's stand-in for it."""
        return "podman" in self.ask("--version").output.lower()

    def inspect(self, container: str) -> Mapping[str, Any] | None:
        """Returns None if there is no such container, and an empty mapping if the runtime does not answer."""
        answer = self.ask("inspect", "--type", "container", container)
        if answer.code:
            return None if UNKNOWN.search(answer.error) else {}
        rows = json.loads(answer.output)
        return dict(rows[0]) if rows else None

    def find_digest(self, image: str) -> str:
        """Returns the image's digest in its registry, or else the one of its configuration."""
        answer = self.ask("image", "inspect", image)
        rows = [] if answer.code else json.loads(answer.output)
        if not rows:
            return ""
        return str(next(iter(rows[0].get("RepoDigests") or []), rows[0].get("Id", "")))

    def has_image(self, image: str) -> bool:
        return self.ask("image", "inspect", image).code == 0

    def find_labelled(self, label: str) -> list[str]:
        return self.ask("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}").output.split()

    def kill(self, container: str, number: signal.Signals) -> None:
        self.ask("kill", "--signal", number.name.removeprefix("SIG"), container)

    def remove(self, container: str) -> str:
        """Kills and removes a container; returns why it is still there, or nothing."""
        answer = self.ask("rm", "--force", "--volumes", container)
        return "" if self.inspect(container) is None else (answer.error.strip() or "it is still there")

    def list_processes(self, container: str) -> list[TopRow]:
        """Returns the processes as `top` shows them; nothing if it cannot."""
        columns = TOP_COLUMNS if self.is_podman else ("-eo", ",".join(PS_COLUMNS))
        answer = self.ask("top", container, *columns)
        rows = [line.split(None, len(PS_COLUMNS) - 1) for line in answer.output.splitlines()[1:]]
        return [_read_row(row) for row in rows if len(row) == len(PS_COLUMNS) and row[0].isdigit()]

    def execute(self, container: str, words: Sequence[str], options: Sequence[str] = ()) -> str | None:
        """Returns the output of a command inside, or None if it failed."""
        answer = self.ask("exec", *options, container, *words, timeout_s=EXEC_S)
        return None if answer.code else answer.output

    def follow(self, container: str, log: Path) -> subprocess.Popen[bytes]:
        """Starts to copy what the container prints, from its start on, to a file."""
        with log.open("ab", buffering=0) as sink:
            return subprocess.Popen(
                [*self.program, "logs", "--follow", container],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, container: str) -> subprocess.Popen[bytes]:
        """Starts a command that prints the container's exit code when it has exited."""
        return subprocess.Popen(
            [*self.program, "wait", container],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _read_row(row: Sequence[str]) -> TopRow:
    pid, parent, rss, state, command = row
    return TopRow(int(pid), int(parent), int(rss) * 1024 if rss.isdigit() else 0, state[:1], command.strip())
