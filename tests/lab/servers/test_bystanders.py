"""Kernel messages about other programs are not the server's."""

import os

import pytest

from firesteel.lab.servers import bundle, bystanders
from firesteel.lab.servers.bundle import KernelLog
from firesteel.lab.servers.bystanders import Bystanders

OTHERS = Bystanders({4242: "chrome", 77: "python3", 78: "ThreadPoolForeg"})
OURS = {500: "python3", 501: "VLLM::EngineCore"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[ 23.5] chrome[4242]: segfault at 0 ip 00 sp 00 error 4 in libc.so", True),
        ("[ 23.5] chrome[9999]: segfault at 0 ip 00 sp 00 error 4 in libc.so", True),
        ("Nov 18 12:00:00 host kernel: ThreadPoolForeg[78]: segfault at 0", True),
        ("[ 23.5] traps: chrome[4242] general protection fault ip:00", True),
        ("[ 23.5] Out of memory: Killed process 4242 (chrome) total-vm:1kB", True),
        ("[ 23.5] oom-kill:constraint=CONSTRAINT_NONE,task=chrome,pid=4242,uid=0", True),
        ("[ 23.5] NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=chrome, Ch 00000008", True),
        ("[ 23.5] python3[77]: segfault at 0", True),  # the same name, but a process from before
        ("[ 23.5] python3[500]: segfault at 0", False),
        ("[ 23.5] python3[9999]: segfault at 0", False),  # a worker that was never seen
        ("[ 23.5] VLLM::EngineCor[9999]: segfault at 0", False),  # the kernel cuts names
        ("[ 23.5] cuda-EvtHandlr[9999]: segfault at 0", False),  # a thread: its name is nobody's
        ("[ 23.5] Out of memory: Killed process 501 (VLLM::EngineCor)", False),
        ("[ 23.5] NVRM: Xid (PCI:0000:01:00): 79, pid=4242, name=chrome, GPU has fallen off", False),
        ("[ 23.5] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off", False),
    ],
)
def test_message_about_another_program_is_recognised(line, expected, monkeypatch):
    monkeypatch.setattr(bystanders, "is_initial_namespace", lambda: True)
    assert OTHERS.are_meant(line, OURS) is expected


def test_server_that_was_never_seen_keeps_messages_about_its_name():
    assert not OTHERS.are_meant("[ 1.0] python3[9999]: segfault at 0", {})


def test_pids_say_nothing_in_a_container(monkeypatch):
    """The kernel counts them from outside."""
    monkeypatch.setattr(bystanders, "is_initial_namespace", lambda: False)
    assert not OTHERS.are_meant("[ 1.0] python3[77]: segfault at 0", OURS)


def test_programs_that_run_now_are_known_with_their_threads():
    assert os.getpid() in Bystanders.now().names


def test_bundle_has_no_segfaults_of_other_programs(monkeypatch):
    lines = ["[1.0] boot"]
    monkeypatch.setattr(bundle, "read_kernel_log", lambda: (list(lines), ""))
    monkeypatch.setattr(Bystanders, "now", classmethod(lambda cls: OTHERS))
    kernel_log = KernelLog()
    lines += ["[2.0] chrome[9999]: segfault at 0", "[3.0] python3[500]: segfault at 0"]
    assert kernel_log.messages_or_reason(OURS) == kernel_log.new_messages(OURS) == lines[-1:]
