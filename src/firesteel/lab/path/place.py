"""Where a server runs: its interpreter and environment, and how to run a command beside it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil  # type: ignore[import-untyped]

TIMEOUT_S = 180  # importing vLLM takes a minute on a busy machine


class Place(Protocol):
    @property
    def interpreter(self) -> str:
        """The server's Python; empty if it is not Python."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the server's process."""

    def run(self, *command: str) -> str | None:
        """Returns what a command prints in the server's environment and folder, or None if it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """A server whose processes belong to this machine."""

    interpreter: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None

    @classmethod
    def of(cls, processes: Iterable[psutil.Process]) -> HostPlace:
        """Takes the first process that is Python, or else the first one that can be read."""
        places = [place for process in processes if (place := cls._of_process(process)) is not None]
        return next((place for place in places if place.interpreter), places[0] if places else cls())

    @classmethod
    def _of_process(cls, process: psutil.Process) -> HostPlace | None:
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            interpreter = words[0] if words and is_python(words[0]) else ""
            return cls(interpreter=interpreter, environment=process.environ(), folder=process.cwd())
        return None

    def run(self, *command: str) -> str | None:
        return run_quietly(command, environment=self.environment, folder=self.folder)


def is_python(program: str) -> bool:
    return "python" in Path(program).name


def run_quietly(
    command: Iterable[str], *, environment: Mapping[str, str] | None = None, folder: str | None = None
) -> str | None:
    """Returns the standard output of a command, or None if it fails."""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
            env=environment,
            cwd=folder,
        )
        return done.stdout.decode(errors="replace")
    return None
