"""Servers that are a service of a compose file: --engine compose:FILE:SERVICE.

The file is used as it is. A second file, made for the run, adds the lab's label and variables to its services,
turns off restarts, and appends the engine's flags to the command of the service.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from firesteel.errors import UserError
from firesteel.lab.servers.container.launch import START_S, run_logged
from firesteel.lab.servers.container.runtime import LABEL, ContainerRuntime
from firesteel.lab.servers.container.words import find_port

PREFIX = "compose:"
OVERRIDE = "compose.lab.yaml"  # in the folder of the run; JSON is YAML
PROGRAMS = ("docker", "podman")


class ComposeService(NamedTuple):
    file: Path
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeLaunch:
    runtime: ContainerRuntime
    service: ComposeService
    image: str
    services: tuple[str, ...]  # all of the file
    command: tuple[str, ...] | None  # of the service with the engine's flags; None: that of the file
    folder: Path  # of the run
    is_alone: bool  # the project had no containers before

    @property
    def _words(self) -> tuple[str, ...]:
        return compose_words(self.runtime, self.service.file, self.folder / OVERRIDE)

    def prepare(self, log: Path) -> None:
        """Pulls the service and what it depends on; what has to be built is left to `up`."""
        if self.image and not self.runtime.has_image(self.image):
            words = compose_words(self.runtime, self.service.file)
            run_logged((*words, "pull", "--ignore-buildable", "--include-deps", self.service.name), log)

    def start(self, server: str, environment: Mapping[str, str], log: Path) -> str:
        self._write_override(server, environment)
        run_logged((*self._words, "up", "--detach", "--no-recreate", self.service.name), log, timeout_s=START_S)
        found = run_logged((*self._words, "ps", "--all", "--quiet", self.service.name), log).split()
        if len(found) != 1:
            raise UserError(
                f"--engine: {self.service.name} has {len(found)} containers, and the lab tests one server"
            )
        return found[0]

    def clean_up(self) -> None:
        """Removes the containers and networks of the project, unless others were there before."""
        if self.is_alone:
            self.runtime.ask(
                *self._words[len(self.runtime.program) :], "down", "--timeout", "10", timeout_s=START_S
            )
        (self.folder / OVERRIDE).unlink(missing_ok=True)

    def _write_override(self, server: str, environment: Mapping[str, str]) -> None:
        settings = {"labels": {LABEL: server}, "restart": "no"}
        services: dict[str, Any] = {name: dict(settings) for name in self.services}
        services[self.service.name]["environment"] = {name: escape(value) for name, value in environment.items()}
        if self.command is not None:
            services[self.service.name]["command"] = [escape(word) for word in self.command]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / OVERRIDE).write_text(json.dumps({"services": services}), encoding="utf-8")


def is_compose(engine: str) -> bool:
    return engine.startswith(PREFIX)


def parse_service(engine: str) -> ComposeService:
    file, colon, name = engine.removeprefix(PREFIX).rpartition(":")
    if not colon or not file or not name:
        raise UserError(f"--engine {engine}: give compose:FILE:SERVICE, such as compose:compose.yaml:vllm")
    if not Path(file).is_file():
        raise UserError(f"--engine {engine}: there is no file {file}")
    return ComposeService(Path(file).resolve(), name)


def find_runtime() -> ContainerRuntime:
    program = next(filter(shutil.which, PROGRAMS), None)
    if program is None:
        raise UserError("--engine compose:...: neither docker nor podman is installed")
    return ContainerRuntime((program,))


def compose_words(runtime: ContainerRuntime, *files: Path) -> tuple[str, ...]:
    return (*runtime.program, "compose", *(word for file in files for word in ("--file", str(file))))


@cache
def read_file(file: Path) -> Mapping[str, Any]:
    """Returns the services of a file as compose resolves them: variables, extensions, and other files."""
    runtime = find_runtime()
    answer = runtime.ask(*compose_words(runtime, file)[len(runtime.program) :], "config", "--format", "json")
    if answer.code:
        raise UserError(f"--engine compose:{file}: {runtime.program[0]} compose: {answer.error.strip()}")
    services = json.loads(answer.output).get("services")
    return services if isinstance(services, dict) else {}


def read_service(service: ComposeService) -> Mapping[str, Any]:
    services = read_file(service.file)
    if service.name not in services:
        raise UserError(
            f"--engine: {service.file.name} has no service {service.name}; it has {', '.join(services)}"
        )
    content: Mapping[str, Any] = services[service.name]
    return content


def make_launch(service: ComposeService, flags: Sequence[str], folder: Path) -> ComposeLaunch:
    content, runtime = read_service(service), find_runtime()
    words = compose_words(runtime, service.file)[len(runtime.program) :]
    running = runtime.ask(*words, "ps", "--all", "--quiet").output.split()
    if runtime.ask(*words, "ps", "--all", "--quiet", service.name).output.split():
        raise UserError(
            f"--engine: the service {service.name} has a container already: remove it (`docker compose --file "
            f"{service.file} rm --stop {service.name}`), or test it as it is (--url)"
        )
    return ComposeLaunch(
        runtime=runtime,
        service=service,
        image=str(content.get("image") or ""),
        services=tuple(read_file(service.file)),
        command=(*service_command(content), *flags) if flags else None,
        folder=folder,
        is_alone=not running,
    )


def service_command(content: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(map(str, content.get("command") or ()))


def find_service_address(content: Mapping[str, Any], name: str, kind: str) -> tuple[str, int]:
    """Returns host and port at which the service will answer on this machine."""
    inside = find_port(service_command(content), kind)
    if content.get("network_mode") == "host":
        return "127.0.0.1", inside
    published = [
        port
        for port in content.get("ports") or ()
        if port.get("protocol") != "udp" and str(port.get("published")).isdigit()
    ]
    chosen = [port for port in published if port.get("target") == inside] or published
    if len(chosen) != 1:
        raise UserError(
            f"--engine: the service {name} must publish port {inside}, such as `ports: ['8000:{inside}']`"
        )
    host = chosen[0].get("host_ip") or ""
    return ("127.0.0.1" if host in ("", "0.0.0.0", "::") else host), int(chosen[0]["published"])


def escape(text: str) -> str:
    """Escapes a text that compose would interpolate."""
    return text.replace("$", "$$")
