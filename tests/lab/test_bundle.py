"""What is collected of a failed server."""

import json

from firesteel.lab import bundle
from firesteel.lab.bundle import KernelWatch, Remains, bundle_up, read_tail
from firesteel.lab.diagnosis import Diagnosis


def test_bundle_holds_the_diagnosis_and_everything_around_it(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "ask_nvidia_smi", lambda: "GPU 0: H200")
    log = tmp_path / "server.log"
    log.write_text("one\ntwo\n")
    remains = Remains(
        command=["serve", "--api-key", "x"], url="http://h:1", log=log, step="load", kernel_messages=["Xid 31"],
        diagnosis=Diagnosis(kind="signal", words="killed", cure="look", evidence=("two",)),
        environment={"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "x", "EDITOR": "vi"},
        processes=[{"pid": 7, "rss_bytes": 9}], ledger=[{"op": "linear"}],
    )  # fmt: skip
    made = bundle_up(tmp_path / "crashes", remains)
    report = json.loads((made / "report.json").read_text())
    around = report["surroundings"]
    assert report["cause"] == "killed; it said: 'two'; look" and report["ledger"] == [{"op": "linear"}]
    assert around["diagnosis"]["evidence"] == ["two"] and around["kernel_messages"] == ["Xid 31"]
    assert around["nvidia_smi"] == "GPU 0: H200" and around["processes"] == [{"pid": 7, "rss_bytes": 9}]
    assert around["environment"] == {"CUDA_VISIBLE_DEVICES": "0"}
    assert (made / "log.txt").read_text() == "one\ntwo\n"


def test_secrets_of_the_command_line_are_nowhere_in_the_bundle(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("started with --api-key sesame\n")
    remains = Remains(
        command=["serve", "--api-key", "sesame", "--hf-secret=open-it", "--tile", "auto"], url="http://h", log=log,
        step="load", kernel_messages=[], diagnosis=Diagnosis(kind="exit", words="ended"), environment={},
        processes=[{"pid": 7, "command": "serve --api-key sesame"}],
    )  # fmt: skip
    made = bundle_up(tmp_path / "crashes", remains)
    text = (made / "report.json").read_text() + (made / "log.txt").read_text()
    assert "sesame" not in text and "open-it" not in text and "auto" in text and "started with" in text


def test_tail_of_a_large_or_missing_or_binary_log(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(1000)))
    assert read_tail(log, num_lines=2) == ["line 998", "line 999"]
    assert len(read_tail(log, num_bytes=30)) <= 5 and read_tail(tmp_path / "none") == []
    log.write_bytes(b"\xff")
    assert read_tail(log) == ["\ufffd"]


def test_kernel_messages_are_those_since_the_start_that_matter(monkeypatch):
    lines = ["[1.0] boot", "[2.0] NVRM: Xid old"]
    monkeypatch.setattr(bundle, "read_dmesg", lambda: list(lines))
    watch = KernelWatch()
    assert watch.news() == []
    lines += ["[3.0] eth0 up", "[4.0] NVRM: Xid (PCI:01): 31", "[5.0] Out of memory: Killed process 4 (python)"]
    assert watch.news() == lines[-2:]


def test_wrapped_buffer_of_the_kernel_gives_what_it_still_has(monkeypatch):
    monkeypatch.setattr(bundle, "read_dmesg", lambda: ["[1.0] gone soon"])
    watch = KernelWatch()
    monkeypatch.setattr(bundle, "read_dmesg", lambda: ["[9.0] python[4]: segfault at 0"])
    assert watch.news() == ["[9.0] python[4]: segfault at 0"]
