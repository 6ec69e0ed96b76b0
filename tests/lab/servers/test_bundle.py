"""What is collected of a failed server."""

import json

import pytest

from firesteel.lab.servers import bundle
from firesteel.lab.servers.bundle import (
    CrashEvidence,
    KernelLog,
    ask_nvidia_smi,
    read_kernel_log,
    read_tail,
    write_crash_bundle,
)
from firesteel.lab.servers.diagnosis import Diagnosis


def test_bundle_holds_the_diagnosis_and_everything_around_it(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("one\ntwo\n")
    remains = CrashEvidence(
        command=["serve", "--api-key", "x"],
        url="http://h:1",
        log=log,
        step="load",
        kernel_messages=["Xid 31"],
        diagnosis=Diagnosis(kind="signal", words="killed", cure="look", evidence=("two",)),
        environment={"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "x", "EDITOR": "vi"},
        processes=[{"pid": 7, "rss_bytes": 9}],
        nvidia_smi="GPU 0: H200",
        ledger=[{"op": "linear"}],
    )
    made = write_crash_bundle(tmp_path / "crashes", remains)
    report = json.loads((made / "report.json").read_text())
    around = report["surroundings"]
    assert report["cause"] == "killed; it said: 'two'; look" and report["ledger"] == [{"op": "linear"}]
    assert around["diagnosis"]["evidence"] == ["two"] and around["kernel_messages"] == ["Xid 31"]
    assert around["nvidia_smi"] == "GPU 0: H200" and around["processes"] == [{"pid": 7, "rss_bytes": 9}]
    assert around["environment"] == {"CUDA_VISIBLE_DEVICES": "0"}
    assert (made / "log.txt").read_text() == "one\ntwo\n"


def test_secrets_of_the_command_line_are_nowhere_in_the_bundle(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("started with --api-key sesame, ali-baba\n")
    remains = CrashEvidence(
        command=[
            "sh",
            "-c",
            "K_TOKEN=ali-baba serve --x y",
            "--api-key",
            "sesame",
            "--hf-secret=open-it",
            "--tile",
            "auto",
        ],
        url="http://h",
        log=log,
        step="load",
        kernel_messages=[],
        diagnosis=Diagnosis(kind="exit", words="ended"),
        environment={},
        processes=[{"pid": 7, "command": "serve --api-key sesame"}],
    )
    made = write_crash_bundle(tmp_path / "crashes", remains)
    text = (made / "report.json").read_text() + (made / "log.txt").read_text()
    assert not any(word in text for word in ("sesame", "open-it", "ali-baba"))
    assert "auto" in text and "started with" in text


def test_tail_of_a_large_or_missing_or_binary_log(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(1000)))
    assert read_tail(log, num_lines=2) == ["line 998", "line 999"]
    assert len(read_tail(log, num_bytes=30)) <= 5 and read_tail(tmp_path / "none") == []
    log.write_bytes(b"\xff")
    assert read_tail(log) == ["\ufffd"]


def test_kernel_messages_are_those_since_the_start_that_matter(monkeypatch):
    lines = ["[1.0] boot", "[2.0] NVRM: Xid old"]
    monkeypatch.setattr(bundle, "read_kernel_log", lambda: (list(lines), ""))
    watch = KernelLog()
    assert watch.new_messages() == []
    lines += ["[3.0] eth0 up", "[4.0] NVRM: Xid (PCI:01): 31", "[5.0] Out of memory: Killed process 4 (python)"]
    assert watch.new_messages() == watch.messages_or_reason() == lines[-2:]


def test_wrapped_buffer_of_the_kernel_gives_what_it_still_has(monkeypatch):
    monkeypatch.setattr(bundle, "read_kernel_log", lambda: (["[1.0] gone soon"], ""))
    watch = KernelLog()
    monkeypatch.setattr(bundle, "read_kernel_log", lambda: (["[9.0] python[4]: segfault at 0"], ""))
    assert watch.new_messages() == ["[9.0] python[4]: segfault at 0"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(name, lines): a script of this name, on a PATH with nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name, lines):
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)

    return make


DENIED = "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1"


def test_where_dmesg_is_kept_to_root_the_journal_is_asked(program):
    program("dmesg", DENIED)
    program("journalctl", "echo 'kernel: NVRM: Xid (PCI:01): 31'")
    assert read_kernel_log() == (["kernel: NVRM: Xid (PCI:01): 31"], "")


@pytest.mark.parametrize("journal", ["true", "echo 'No journal files were opened' >&2; exit 1", None])
def test_kernel_log_that_nobody_may_read_is_said_with_the_cure(program, journal):
    """An empty list read as if the kernel had said nothing."""
    program("dmesg", DENIED)
    if journal is not None:
        program("journalctl", journal)
    watch = KernelLog()
    [line] = watch.messages_or_reason()
    assert line.startswith("not readable: dmesg failed: dmesg: read kernel buffer failed: Operation not permitted")
    assert "journalctl" in line and "sysctl kernel.dmesg_restrict=0" in line and watch.new_messages() == []


def test_quiet_kernel_is_not_called_unreadable(program):
    program("dmesg", "true")
    assert read_kernel_log() == ([], "") and KernelLog().messages_or_reason() == []


def test_nvidia_smi_that_fails_is_quoted(program):
    program("nvidia-smi", "echo 'Unable to determine the device handle: GPU is lost'; exit 15")
    assert ask_nvidia_smi() == (
        "Unable to determine the device handle: GPU is lost\n\nnvidia-smi failed: exit code 15"
    )
