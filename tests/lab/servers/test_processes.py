"""All processes of a server are found."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from firesteel.lab.servers.processes import MARKER, ServerProcesses, adopt_orphans, describe

CHILD_LEAVES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
time.sleep(600)
"""
CHILD_CLEARS = """
import os, sys, time
if os.fork() == 0:
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
time.sleep(600)
"""


@pytest.fixture
def start():
    started = []

    def start_program(program):
        adopt_orphans()
        marker = f"test-{time.monotonic_ns()}"
        process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, env={MARKER: marker})
        processes = ServerProcesses(process.pid, marker)
        started.append((process, processes))
        deadline = time.monotonic() + 10
        while len(processes.find()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        return process, processes

    yield start_program
    for process, processes in started:
        processes.send(signal.SIGKILL)
        process.wait()
        processes.is_gone_within(5, process.poll)


@pytest.mark.parametrize("program", [CHILD_LEAVES, CHILD_CLEARS], ids=["leaves", "clears"])
def test_child_that_leaves_the_session_or_clears_its_environment_is_found(program, start):
    _, processes = start(program)
    assert len(processes.describe_all()) == 2 and processes.rss_bytes() > 1e6


def test_all_are_gone_after_a_signal_and_reaped(start):
    process, processes = start(CHILD_LEAVES)
    pids = [each.pid for each in processes.find()]
    processes.send(signal.SIGKILL)
    assert processes.is_gone_within(10, process.poll)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_process_that_stays_is_not_gone(start):
    process, processes = start(CHILD_LEAVES)
    assert not processes.is_gone_within(0.1, process.poll) and len(processes.find_living()) == 2


def test_known_processes_are_found_without_a_search(start):
    process, processes = start(CHILD_LEAVES)
    assert len(processes.describe_all(known_only=True)) == 2
    assert not ServerProcesses(process.pid, processes.marker).describe_all(known_only=True)
    processes.send(signal.SIGKILL)
    processes.is_gone_within(10, process.poll)
    assert not processes.find_known()


def test_unrelated_processes_are_not_found():
    assert not ServerProcesses(leader=2**22 + 1, marker="nobody").find()


def test_description_of_an_exited_process_is_none():
    done = subprocess.Popen([sys.executable, "-c", ""])
    seen = psutil.Process(done.pid)
    done.wait()
    assert describe(seen) is None


def test_secrets_of_a_command_line_are_hidden():
    code = "import sys; print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, "--api-key", "sesame", "--port", "1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()  # before exec a process has no command line for a moment
        command = describe(psutil.Process(child.pid)).command
        child.stdin.close()
    assert command.endswith("--api-key (hidden) --port 1")
