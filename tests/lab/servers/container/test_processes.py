"""Processes of containers, here and on another machine."""

import os
import subprocess
import sys

from firesteel.lab.servers.container import processes
from firesteel.lab.servers.container.processes import ContainerProcesses, is_here
from firesteel.lab.servers.container.runtime import ContainerRuntime, TopRow

ROWS = [TopRow(7, 1, 1 << 30, "S", "/usr/bin/python3 serve"), TopRow(8, 7, 0, "Z", "[python3]")]


def test_pid_belongs_to_the_container_if_its_parent_names_it():
    program = "import subprocess; p = subprocess.Popen(['sleep', '9']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-S", "-c", program, "abc123"], stdout=subprocess.PIPE) as shim:
        pid = int(shim.stdout.readline())
        assert is_here(pid, "abc123") and not is_here(pid, "other")
        os.kill(pid, 9)
    assert not is_here(0, "abc123") and not is_here(1 << 30, "abc123")


def test_container_of_another_machine_is_described_by_top(monkeypatch):
    """Docker in a virtual machine: its pids mean other processes here, or none."""
    monkeypatch.setattr(ContainerRuntime, "list_processes", lambda self, container: ROWS)
    monkeypatch.setattr(processes, "is_here", lambda pid, container: False)
    found = ContainerProcesses(ContainerRuntime(("docker",)), "abc", os.getpid())
    assert found.leader == 0 and found.find() == [] and found.find_living() == []
    assert found.describe_all(known_only=True) == [] and found.rss_bytes() == 1 << 30
    assert [process.pid for process in found.find_zombies()] == [8]
    assert found.list_commands()[0] == "/usr/bin/python3 serve"


def test_secrets_in_command_lines_of_another_machine_are_hidden(monkeypatch):
    """Reports quote command lines, which show the path of llama.cpp."""
    row = TopRow(7, 1, 0, "S", "llama-server --api-key very-secret --cpu-moe")
    monkeypatch.setattr(ContainerRuntime, "list_processes", lambda self, container: [row])
    monkeypatch.setattr(processes, "is_here", lambda pid, container: False)
    [command] = ContainerProcesses(ContainerRuntime(("docker",)), "abc", 7).list_commands()
    assert "very-secret" not in command and command.endswith(" --cpu-moe")
