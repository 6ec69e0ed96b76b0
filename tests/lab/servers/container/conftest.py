"""A stand-in for docker on the PATH, and servers in its containers."""

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from firesteel.lab.servers.commands import make_command
from firesteel.lab.servers.container.runtime import ContainerRuntime
from firesteel.lab.servers.supervisor import find_free_port

STAND_IN = Path(__file__).parent / "docker_stand_in.py"
FAKE = Path(__file__).parents[2] / "fake_server.py"


@dataclass
class StandIn:
    folder: Path
    runtime: ContainerRuntime

    def run(self, *words):
        return subprocess.run(["docker", *words], capture_output=True, encoding="utf-8", check=False)

    def containers(self, *words):
        return self.run("ps", "--all", "--quiet", *words).stdout.split()

    def command(self, way="well", *, options="", image="vllm/vllm-fake", program="", flags=(), **fields):
        """Returns the command of a fake server in a container, as the lab makes it."""
        program = program or f"{sys.executable} -S {FAKE} {{port}} {way}"
        engine = f"docker run {options} -p {{port}}:{{port}} {image} {program}"
        command = make_command(engine, model="m", port=find_free_port(), folder=self.folder, flags=flags)
        return replace(command, **{"ready_s": 20.0, "grace_s": 1.0, **fields})


@pytest.fixture
def docker(tmp_path, monkeypatch):
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "images").write_text("vllm/vllm-fake\n")
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {STAND_IN} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN", str(folder))
    stand_in = StandIn(folder, ContainerRuntime(("docker",)))
    yield stand_in
    with contextlib.suppress(FileNotFoundError):
        (folder / "broken").unlink()
    stand_in.run("rm", "--force", *stand_in.containers())
