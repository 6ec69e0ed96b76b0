"""How a container is started: by `docker run`, with what the lab adds to it."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from firesteel.lab.servers.container.runtime import LABEL, ContainerRuntime
from firesteel.lab.servers.container.words import RunWords

START_S = 300.0  # creating containers of many layers on a slow disk


class StartFailed(Exception):
    """The runtime exited with this code; its log says why."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class ContainerLaunch(Protocol):
    @property
    def runtime(self) -> ContainerRuntime: ...

    @property
    def image(self) -> str: ...

    def prepare(self, log: Path) -> None:
        """Fetches the image if it is missing, which may take long and be interrupted."""

    def start(self, server: str, environment: Mapping[str, str], log: Path) -> str:
        """Starts the container, labelled with this server, and returns its id."""

    def clean_up(self) -> None:
        """Removes what the launch created beside the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLaunch:
    """`docker run`, detached. Variables are options of the command: the daemon does not inherit ours."""

    run: RunWords

    @property
    def runtime(self) -> ContainerRuntime:
        return ContainerRuntime(self.run.program)

    @property
    def image(self) -> str:
        return self.run.image

    def prepare(self, log: Path) -> None:
        is_asked = bool(self.run.values("pull"))  # the user's --pull decides
        if not is_asked and not self.runtime.has_image(self.image):
            platform = [word for value in self.run.values("platform") for word in ("--platform", value)]
            run_logged((*self.run.program, "pull", *platform, self.image), log)

    def start(self, server: str, environment: Mapping[str, str], log: Path) -> str:
        added = ["--label", f"{LABEL}={server}", *to_options(environment)]
        return run_logged(self.run.detached(added), log, timeout_s=START_S).split()[-1]

    def clean_up(self) -> None:
        """Does nothing: `run` creates only the container."""


def to_options(environment: Mapping[str, str]) -> list[str]:
    pairs = (("--env", f"{name}={value}") for name, value in environment.items())
    return list(itertools.chain.from_iterable(pairs))


def run_logged(words: Sequence[str], log: Path, timeout_s: float | None = None) -> str:
    """Returns what a command prints, and appends its errors to the log; of a failed one everything."""
    with log.open("ab", buffering=0) as sink:
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                timeout=timeout_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            sink.write(f"{words[0]} did not finish in {timeout_s} s\n".encode())
            raise StartFailed(-1) from error
        if done.returncode:
            sink.write(done.stdout)
            raise StartFailed(done.returncode)
    return done.stdout.decode(errors="replace")
