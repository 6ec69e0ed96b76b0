"""Where a server in a container runs: its interpreter, its environment, and commands beside it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from firesteel.lab.path.place import HostPlace, is_python
from firesteel.lab.servers.container.processes import ContainerProcesses
from firesteel.lab.servers.container.runtime import ContainerRuntime

# They decide what is imported. An entry point may have changed them; `exec` starts from the container's own.
IMPORT_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlace:
    runtime: ContainerRuntime
    container: str
    interpreter: str
    environment: Mapping[str, str]
    folder: str | None = None

    @classmethod
    def of(
        cls,
        runtime: ContainerRuntime,
        container: str,
        processes: ContainerProcesses,
        environment: Mapping[str, str],
    ) -> ContainerPlace:
        """Takes the environment of the server's process if this user may read it, else that of the container."""
        seen = HostPlace.of(processes.find())
        programs = [command.split()[0] for command in processes.list_commands() if command]
        return cls(
            runtime=runtime,
            container=container,
            interpreter=next(filter(is_python, programs), ""),
            environment=seen.environment or environment,
            folder=seen.folder,
        )

    def run(self, *command: str) -> str | None:
        named = [(name, self.environment[name]) for name in IMPORT_VARIABLES if name in self.environment]
        options = list(itertools.chain.from_iterable(("--env", f"{name}={value}") for name, value in named))
        folder = ["--workdir", self.folder] if self.folder else []
        return self.runtime.execute(self.container, command, [*options, *folder])
