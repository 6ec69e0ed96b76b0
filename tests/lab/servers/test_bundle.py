"""Crash bundles of failed servers."""

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


def test_bundle_holds_the_diagnosis_and_its_context(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("one\ntwo\n")
    evidence = CrashEvidence(
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
    bundle_folder = write_crash_bundle(tmp_path / "crashes", evidence)
    report = json.loads((bundle_folder / "report.json").read_text())
    around = report["surroundings"]
    assert report["cause"] == "killed; last line: 'two'; look" and report["ledger"] == [{"op": "linear"}]
    assert around["diagnosis"]["evidence"] == ["two"] and around["kernel_messages"] == ["Xid 31"]
    assert around["nvidia_smi"] == "GPU 0: H200" and around["processes"] == [{"pid": 7, "rss_bytes": 9}]
    assert around["environment"] == {"CUDA_VISIBLE_DEVICES": "0"}
    assert (bundle_folder / "log.txt").read_text() == "one\ntwo\n"


def test_bundle_has_no_secrets_of_the_command_line(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("started with --api-key sesame, ali-baba\n")
    evidence = CrashEvidence(
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
    bundle_folder = write_crash_bundle(tmp_path / "crashes", evidence)
    text = (bundle_folder / "report.json").read_text() + (bundle_folder / "log.txt").read_text()
    assert not any(word in text for word in ("sesame", "open-it", "ali-baba"))
    assert "auto" in text and "started with" in text


def test_tail_of_a_large_or_missing_or_binary_log(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(1000)))
    assert read_tail(log, num_lines=2) == ["line 998", "line 999"]
    assert len(read_tail(log, num_bytes=30)) <= 5 and read_tail(tmp_path / "none") == []
    log.write_bytes(b"\xff")
    assert read_tail(log) == ["\ufffd"]


def test_only_relevant_new_kernel_messages_are_kept(monkeypatch):
    lines = ["[1.0] boot", "[2.0] NVRM: Xid old"]
    monkeypatch.setattr(bundle, "read_kernel_log", lambda: (list(lines), ""))
    kernel_log = KernelLog()
    assert kernel_log.new_messages() == []
    lines += [
        "[3.0] eth0 up",
        "[4.0] NVRM: Xid (PCI:01): 31",
        "[5.0] Out of memory: Killed process 9999999 (serve)",
    ]
    assert kernel_log.new_messages() == kernel_log.messages_or_reason() == lines[-2:]


def test_wrapped_kernel_buffer_gives_its_remaining_messages(monkeypatch):
    monkeypatch.setattr(bundle, "read_kernel_log", lambda: (["[1.0] gone soon"], ""))
    kernel_log = KernelLog()
    monkeypatch.setattr(bundle, "read_kernel_log", lambda: (["[9.0] serve[9999999]: segfault at 0"], ""))
    assert kernel_log.new_messages() == ["[9.0] serve[9999999]: segfault at 0"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(name, lines): creates a script, on a PATH with nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name, lines):
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)

    return make


DENIED = "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1"


def test_journal_is_read_if_dmesg_is_restricted(program):
    program("dmesg", DENIED)
    program("journalctl", "echo 'kernel: NVRM: Xid (PCI:01): 31'")
    assert read_kernel_log() == (["kernel: NVRM: Xid (PCI:01): 31"], "")


@pytest.mark.parametrize("journal", ["true", "echo 'No journal files were opened' >&2; exit 1", None])
def test_unreadable_kernel_log_is_reported_with_the_cure(program, journal):
    """An empty list once looked as if there were no messages."""
    program("dmesg", DENIED)
    if journal is not None:
        program("journalctl", journal)
    kernel_log = KernelLog()
    [line] = kernel_log.messages_or_reason()
    assert line.startswith("not readable: dmesg failed: dmesg: read kernel buffer failed: Operation not permitted")
    assert "journalctl" in line and "sysctl kernel.dmesg_restrict=0" in line and kernel_log.new_messages() == []


def test_empty_kernel_log_is_not_unreadable(program):
    program("dmesg", "true")
    assert read_kernel_log() == ([], "") and KernelLog().messages_or_reason() == []


def test_failing_nvidia_smi_is_quoted(program):
    program("nvidia-smi", "echo 'Unable to determine the device handle: GPU is lost'; exit 15")
    assert ask_nvidia_smi() == (
        "Unable to determine the device handle: GPU is lost\n\nnvidia-smi failed: exit code 15"
    )
