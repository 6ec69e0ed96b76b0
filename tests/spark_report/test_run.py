"""A run: parts that fail, hang, exhaust memory or are killed, and the file that each of these leaves."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import firesteel
from firesteel.device import GIB, find_device
from firesteel.device.host_memory import HostMemory
from firesteel.errors import UserError
from firesteel.exam import TEXT, read_items
from firesteel.measure.record import Record
from firesteel.spark_report import run as report_run
from firesteel.spark_report.pack import pack
from firesteel.spark_report.report import Report
from firesteel.spark_report.run import find_least_free_bytes, make_report
from firesteel.surroundings import look_around

CPU = find_device("cpu")
KINDLING = Path(firesteel.__file__).parent / "kindling"
BOOK = "https://www.gutenberg.org/files/1661/1661-0.txt"  # llama-benchy's, here with another text
SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
FAIL = (sys.executable, "-c", "raise SystemExit(3)")
# A report whose second part sleeps: the first ends at once.
KILLED = """
import sys, time
from pathlib import Path
from firesteel.device import find_device
from firesteel.spark_report.run import make_report
stub = "import sys, time; time.sleep(600 * (sys.argv[1] == 'verify')); print('[]')"
make_report(find_device("cpu"), Path(sys.argv[1]), quick=True, command=(sys.executable, "-c", stub))
"""


def silent(text):
    pass


def test_part_that_dies_is_reported_and_the_rest_is_kept(report):
    parts, files, told = report
    assert [(part.name, part.exit_code) for part in parts] == [
        ("doctor", 0),
        ("verify", 1),
        ("prove", 0),
        ("bench-bf16", 0),
    ]
    content = json.loads(files["report.json"])
    verify = content["parts"][1]
    assert verify["result"] is None and "Traceback in ~/secret/verify.py" in verify["last_words"]
    assert content["parts"][2]["result"] == [{"verdict": "bf16"}]
    assert content["running"] == "" and content["planned"] == [part.name for part in parts]
    assert any("2 of 4: verify, about 2 min" in line for line in told)
    assert any("FAILED (exit code 1)" in line for line in told)
    assert told[0].startswith("4 parts, about ") and "complete after each part" in told[0]


def test_summary_lists_the_parts_in_words(report):
    text = report[1]["summary.md"]
    assert "no GPU was found" in text and "- doctor: done" in text and "1 note, 1 ok" in text
    assert "- verify: FAILED (exit code 1)" in text and "## verify (exit code 1)" in text
    assert "1 not measured, 1 read" in text


def test_records_plots_and_samples_are_included(report, tmp_path):
    _, files, _ = report
    (name,) = [name for name in files if name.startswith("records/")]
    path = tmp_path / "record.json"
    path.write_text(files[name])
    record = Record.load(path)
    assert name == f"records/bench-bf16/{record.file_name}" and record.config["model"]["model"] == "~/models"
    assert files["bench-bf16-ops.html"] == "<html>~/x"
    rows = [line.split(",") for line in files["machine.csv"].splitlines()]
    assert rows[0] == ["part", "seconds", "available_gib", "sm_mhz", "memory_mhz", "temperature_c", "draw_w"]
    assert {row[0] for row in rows[1:]} == {"doctor", "verify", "prove", "bench-bf16"}
    assert all(float(row[2]) > 0 for row in rows[1:])


def test_files_of_llama_benchy_are_included_without_paths(tmp_path, unzip):
    folder, out = tmp_path / "parts" / "model-llama-benchy", tmp_path / "r.zip"
    folder.mkdir(parents=True)
    for name in ("llama-benchy.json", "llama-benchy.txt", "firesteel.log"):
        (folder / name).write_text(f'{{"model": "/data/jane/model", "home": "{Path.home()}/x"}}')
    state = Report(
        device=CPU, surroundings=look_around(CPU), quick=True, planned=[], model=Path("/data/jane/model")
    )
    pack(out, state, folder.parent)
    files = unzip(out)
    for ending in ("json", "txt"):
        assert files[f"model-llama-benchy-llama-benchy.{ending}"] == '{"model": "MODEL", "home": "~/x"}'
    assert not any("firesteel.log" in name for name in files)


def test_no_home_folder_is_in_any_file(report):
    for text in report[1].values():
        assert str(Path.home()) not in text


def test_part_that_hangs_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(report_run, "PATIENCE_S", 0.1)
    parts = make_report(CPU, tmp_path / "r.zip", tell=silent, command=SLEEP)
    assert {part.exit_code for part in parts} == {124} and parts[0].reason == "stopped after 0.1 s"


def test_part_is_ended_with_its_children_when_memory_runs_low(monkeypatch, tmp_path, unzip):
    """A machine with unified memory that runs out of it stops answering."""
    pid_file = tmp_path / "child"
    stub = (
        "import subprocess, sys, time; from pathlib import Path; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True); "
        f"Path({str(pid_file)!r}).write_text(str(child.pid)); time.sleep(60)"
    )
    monkeypatch.setattr(report_run, "MEMORY_WAIT_S", 0.1)
    monkeypatch.setattr(
        report_run,
        "find_host_memory",
        lambda: HostMemory(100 * GIB, GIB if pid_file.is_file() and pid_file.read_text() else 50 * GIB),
    )
    parts = make_report(CPU, tmp_path / "r.zip", tell=silent, command=(sys.executable, "-c", stub))
    assert [part.exit_code for part in parts] == [125] * 4
    assert parts[0].reason == "stopped: 1.0 GiB of memory were free, 4.0 are required; end other programs"
    assert parts[1].reason.startswith("not started: 1.0 GiB of memory were free, 8.0 are required")
    child = int(pid_file.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert "stopped: 1.0 GiB" in unzip(tmp_path / "r.zip")["summary.md"]


def test_part_waits_for_memory_that_is_given_back(monkeypatch, tmp_path):
    """Once a short shortage made all remaining parts fail within seconds."""
    answers = iter([HostMemory(100 * GIB, 5 * GIB)] * 4)
    monkeypatch.setattr(report_run, "find_host_memory", lambda: next(answers, HostMemory(100 * GIB, 9 * GIB)))
    parts = make_report(CPU, tmp_path / "r.zip", tell=silent, command=(sys.executable, "-c", "print('[]')"))
    assert [part.exit_code for part in parts] == [0] * 4 and parts[0].seconds > 0.5


@pytest.mark.parametrize(("total", "least"), [(24, 2.0), (119, 4.76)])
def test_guard_keeps_a_share_of_the_memory(monkeypatch, total, least):
    monkeypatch.setattr(report_run, "find_host_memory", lambda: HostMemory(total * GIB, GIB))
    assert find_least_free_bytes() / GIB == pytest.approx(least)


def test_killed_run_keeps_its_finished_parts(tmp_path, unzip):
    """A run killed in its second part once left an empty file."""
    out = tmp_path / "r.zip"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(out)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (out.is_file() and json.loads(unzip(out)["report.json"])["running"] == "verify"):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        children = psutil.Process(process.pid).children()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
    content = json.loads(unzip(out)["report.json"])
    assert [part["name"] for part in content["parts"]] == ["doctor"] and content["running"] == "verify"
    assert "running when this was written: verify" in unzip(out)["summary.md"]


def test_interrupt_keeps_the_finished_parts(monkeypatch, tmp_path, unzip):
    told, run_part = [], report_run.run_part

    def run(part, *arguments, **told):
        if part.name == "prove":
            raise KeyboardInterrupt
        return run_part(part, *arguments, **told)

    monkeypatch.setattr(report_run, "run_part", run)
    with pytest.raises(KeyboardInterrupt):
        make_report(CPU, tmp_path / "r.zip", tell=told.append, command=(sys.executable, "-c", "print('[]')"))
    content = json.loads(unzip(tmp_path / "r.zip")["report.json"])
    assert [part["name"] for part in content["parts"]] == ["doctor", "verify"]
    assert told[-1] == f"ended early: 2 of 4 parts are in {tmp_path / 'r.zip'}"
    assert [path.name for path in tmp_path.iterdir()] == ["r.zip"]


def test_missing_folder_is_an_error_before_anything_runs(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        make_report(CPU, tmp_path / "gone" / "r.zip", command=FAIL)


def test_unwritable_file_is_an_error_before_anything_runs(tmp_path):
    for out in (tmp_path, Path("/proc/x.zip")):
        with pytest.raises(UserError, match=f"cannot write {out}: .*; choose another file with --out"):
            make_report(CPU, out, command=FAIL)


@pytest.mark.slow
def test_real_parts_run_on_this_machine(tmp_path, monkeypatch, unzip):
    """With the built-in checkpoint: its parts once failed or never ended, unnoticed."""
    told = []
    cache = tmp_path / ".cache" / "llama-benchy"
    cache.mkdir(parents=True)
    text = " ".join(item.text or "" for item in read_items(TEXT))
    (cache / f"{hashlib.md5(BOOK.encode()).hexdigest()}.txt").write_text(text * 20)
    monkeypatch.setenv("HOME", str(tmp_path))
    parts = make_report(find_device(), tmp_path / "r.zip", quick=True, model=KINDLING, tell=told.append)
    codes = {part.name: part.exit_code for part in parts if part.exit_code}
    assert codes == ({} if find_device().is_cuda else {"verify": 3}), [part.last_words for part in parts]
    assert all(part.result for part in parts)
    real = {part.name for part in parts if part.name.startswith("model-")}
    assert real >= {"model-prefill", "model-engine", "model-serve", "model-llama-benchy", "model-quality"}
    files = unzip(tmp_path / "r.zip")
    [benchy] = [line for line in files["summary.md"].splitlines() if line.startswith("- model-llama-benchy: ")]
    assert re.search(r"pp512: [\d.]+ tok/s, tg16: [\d.]+ tok/s, pp512 @ d512: [\d.]+ tok/s, tg16 @ d512: ", benchy)
    assert len(json.loads(files["model-llama-benchy-llama-benchy.json"])["benchmarks"]) == 2
    assert "Coherence test PASSED" in files["model-llama-benchy-llama-benchy.txt"]
    assert not any(str(folder) in text for folder in (tmp_path, KINDLING) for text in files.values())
