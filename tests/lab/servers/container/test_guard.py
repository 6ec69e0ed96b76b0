"""A lab that is killed leaves no container."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from firesteel.lab.servers.container.guard import ContainerGuard
from firesteel.lab.servers.container.runtime import LABEL

FAKE = Path(__file__).parents[2] / "fake_server.py"


def start_container(docker, server):
    docker.run("run", "--detach", "--label", f"{LABEL}={server}", "vllm/vllm-fake", "sleep", "60")
    assert docker.containers()


def test_container_is_removed_if_the_lab_is_gone(docker):
    guard = ContainerGuard(docker.runtime, "a")
    start_container(docker, "a")
    guard._shell.stdin.close()  # as the kernel does for a killed process
    guard._shell.wait(10)
    assert docker.containers() == []


@pytest.mark.slow
def test_dismissed_guard_and_that_of_another_server_remove_nothing(docker):
    ours, other = ContainerGuard(docker.runtime, "a"), ContainerGuard(docker.runtime, "b")
    start_container(docker, "a")
    other._shell.stdin.close()
    ours.dismiss()
    assert len(docker.containers()) == 1
    other._shell.kill()
    other._shell.wait()


LAB = """
import sys
from pathlib import Path
from firesteel.lab.servers.commands import make_command
from firesteel.lab.servers.shutdown import stop_servers_on_signals
from firesteel.lab.servers.supervisor import SupervisedServer, find_free_port
stop_servers_on_signals()
engine = "docker run -p {{port}}:{{port}} vllm/vllm-fake {python} -S {fake} {{port}} well"
command = make_command(engine, model="m", port=find_free_port(), folder=Path({folder!r}))
with SupervisedServer(command, Path({folder!r})) as server:
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_container_is_left_after_the_lab_was_interrupted_or_killed(number, docker, tmp_path):
    program = textwrap.dedent(LAB).format(python=sys.executable, fake=FAKE, folder=str(tmp_path / "out"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as lab:
        assert lab.stdout.readline() == b"ready\n" and len(docker.containers()) == 1
        os.killpg(lab.pid, number)
    deadline = time.monotonic() + 15
    while docker.containers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert docker.containers() == []
