"""Processes of one server, wherever they hide."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from firesteel.lab.servers.processes import MARK, Family, adopt_orphans, describe, tree_in_words

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
def family():
    started = []

    def start(program):
        adopt_orphans()
        mark = f"test-{time.monotonic_ns()}"
        process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, env={MARK: mark})
        found = Family(process.pid, mark)
        started.append((process, found))
        deadline = time.monotonic() + 10
        while len(found.find()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        return process, found

    yield start
    for process, found in started:
        found.send(signal.SIGKILL)
        process.wait()
        found.is_gone_within(5, process.poll)


@pytest.mark.parametrize("program", [CHILD_LEAVES, CHILD_CLEARS], ids=["leaves", "clears"])
def test_child_that_leaves_the_session_or_clears_its_environment_is_found(program, family):
    _, found = family(program)
    assert len(found.members()) == 2 and found.rss_bytes() > 1e6


def test_all_are_gone_after_a_signal_and_nobody_is_left_unreaped(family):
    process, found = family(CHILD_LEAVES)
    pids = [one.pid for one in found.find()]
    found.send(signal.SIGKILL)
    assert found.is_gone_within(10, process.poll)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_process_that_stays_is_not_gone(family):
    process, found = family(CHILD_LEAVES)
    assert not found.is_gone_within(0.1, process.poll) and len(found.living()) == 2


def test_known_ones_are_recalled_without_a_search_and_others_not(family):
    process, found = family(CHILD_LEAVES)
    assert len(found.members(known_only=True)) == 2
    assert not Family(process.pid, found.mark).members(known_only=True)
    found.send(signal.SIGKILL)
    found.is_gone_within(10, process.poll)
    assert not found.recall()


def test_strangers_do_not_belong():
    assert not Family(leader=2**22 + 1, mark="nobody").find()


def test_tree_shows_memory_and_command(family):
    _, found = family(CHILD_LEAVES)
    lines = tree_in_words(found.members())
    assert len(lines) == 2 and all("MB" in line and "sleep" in line for line in lines)


def test_process_that_is_gone_is_not_described():
    done = subprocess.Popen([sys.executable, "-c", ""])
    seen = psutil.Process(done.pid)
    done.wait()
    assert describe(seen) is None


def test_secrets_of_a_command_line_are_not_described():
    code = "import sys; print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, "--api-key", "sesame", "--port", "1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        one.stdout.readline()  # it runs: a process that is about to has no command line for a moment
        command = describe(psutil.Process(one.pid)).command
        one.stdin.close()
    assert command.endswith("--api-key (hidden) --port 1")
