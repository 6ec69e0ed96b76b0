"""Ops under a sanitizer in parallel: reports, time limits, and no process left running."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

import sanitize_all
from firesteel import kernels

# A fake compute-sanitizer: runs the command after its flags and prints findings.
SANITIZER = """#!/bin/sh
tool="$8"; shift 8
"$@" || { echo "========= ERROR SUMMARY: 1 error"; exit 1; }
if [ "$tool-$OP_WITH_RACE" = racecheck-"$4" ]; then
    echo "========= Error: Race reported at [/a/kernel]"
    for i in $(seq 99); do echo "more"; done
    echo "========= RACECHECK SUMMARY: 1 hazard in [/a/kernel]"
    exit 1
fi
echo "========= ERROR SUMMARY: 0 errors"
"""
# A fake tools/sanitize.py; OP is the last argument.
WATCHED = """
import os, sys, time
op = sys.argv[-1]
if op == "idle":
    print("idle, a sample: no implementation accepts it (0.1 s)")
    sys.exit(0)
print(f"{op}, a sample: cuda (0.1 s)", flush=True)
if op == "slow" and "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
    time.sleep(600)
if op == "wrong":
    sys.exit("wrong cuda a sample: differs")
if op == "loud":
    sys.stdout.buffer.write(bytes([0xff, 10]))
print(f"{op}, another: cuda (0.1 s)", flush=True)
"""


@pytest.fixture
def sanitizer(tmp_path, monkeypatch):
    """Puts a fake sanitizer on the PATH and a small program in place of tools/sanitize.py; returns its path."""
    path = tmp_path / "compute-sanitizer"
    path.write_text(SANITIZER)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    watched = tmp_path / "watched.py"
    watched.write_text(WATCHED)
    monkeypatch.setattr(sanitize_all, "WATCHED", (sys.executable, str(watched)))
    return watched


def run(ops, seconds=None):
    shown = io.StringIO()
    return sanitize_all.run(ops, 4, seconds, Console(width=120, file=shown)), shown.getvalue()


def rows(text):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]


@pytest.mark.usefixtures("sanitizer")
def test_each_op_is_checked_by_both_tools():
    is_clean, text = run(["good", "fine"])
    assert is_clean
    assert sorted((op, tool, samples, verdict) for op, tool, samples, _, verdict, _ in rows(text)) == [
        ("fine", "memcheck", "2", "clean"),
        ("fine", "racecheck", "2", "clean"),
        ("good", "memcheck", "2", "clean"),
        ("good", "racecheck", "2", "clean"),
    ]
    assert {row[-1] for row in rows(text)} == {"ERROR SUMMARY: 0 errors"}


@pytest.mark.usefixtures("sanitizer")
def test_report_is_shown_and_the_other_ops_are_still_checked(monkeypatch):
    monkeypatch.setenv("OP_WITH_RACE", "racy")
    is_clean, text = run(["racy", "good", "wrong"])
    verdicts = {(op, tool): (samples, verdict) for op, tool, samples, _, verdict, _ in rows(text)}
    assert not is_clean and verdicts["racy", "memcheck"] == ("2", "clean")
    assert verdicts["racy", "racecheck"] == ("2", "broken") and verdicts["good", "racecheck"] == ("2", "clean")
    assert verdicts["wrong", "compiling"] == verdicts["wrong", "memcheck"] == ("1", "broken")
    assert "wrong cuda a sample: differs" in text
    assert "RACECHECK SUMMARY: 1 hazard in [/a/kernel]" in text and "Error: Race reported at [/a/kernel]" in text


@pytest.mark.usefixtures("sanitizer")
def test_op_that_did_not_run_is_not_clean_and_invalid_bytes_are_accepted():
    is_clean, text = run(["idle", "loud"])
    assert not is_clean
    assert {(op, verdict) for op, _, _, _, verdict, _ in rows(text)} == {("idle", "nothing ran"), ("loud", "clean")}


def is_running(program):
    return any(str(program) in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


@pytest.mark.slow
def test_job_past_its_time_is_killed_and_shows_how_far_it_got(sanitizer):
    start = time.monotonic()
    is_clean, text = run(["slow"], seconds=15)
    assert not is_clean and time.monotonic() - start < 100
    assert {(row[1], row[2], row[4], row[5]) for row in rows(text)} == {
        (tool, "1", "unfinished", "slow, a sample: cuda (0.1 s)") for tool in ("memcheck", "racecheck")
    }
    assert not is_running(sanitizer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_nothing_running(sanitizer, number):
    words = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
import sanitize_all
from firesteel.kernels.registry import ALL_OPS
from types import SimpleNamespace
sanitize_all.WATCHED = {sanitize_all.WATCHED!r}
sanitize_all.ALL_OPS = [SimpleNamespace(name="slow"), SimpleNamespace(name="good")]
sanitize_all.main()
"""
    path = os.pathsep.join([str(Path(sanitize_all.__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", words],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    )
    said = [process.stdout.readline() for _ in range(5)]  # four are compiled, and good is watched once
    assert "good, memcheck: clean" in "".join(said) or "good, racecheck: clean" in "".join(said)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0 and not is_running(sanitizer)


def test_missing_sanitizer_is_an_error_with_the_cure(monkeypatch):
    monkeypatch.setattr("sys.argv", ["sanitize_all.py"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="compute-sanitizer is not on the PATH: install the CUDA toolkit"):
        sanitize_all.main()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["decode_expert"], "unknown op decode_expert; the ops are rms_norm"),
        (["--jobs", "0"], "--jobs 0: must be at least 1"),
    ],
)
def test_invalid_arguments_are_refused(monkeypatch, capsys, words, why):
    monkeypatch.setattr("sys.argv", ["sanitize_all.py", *words])
    with pytest.raises(SystemExit):
        sanitize_all.main()
    assert why in capsys.readouterr().err


def test_none_of_our_kernels_has_a_name_like_the_excluded_ones():
    """The excluded names are mangled; ours are as in their sources."""
    sources = [path.read_text() for path in (Path(kernels.__file__).parent / "csrc").glob("*.cu")]
    lines = [line for text in sources for line in text.splitlines() if "__global__" in line]
    assert len(lines) > 10 and all(line.startswith('extern "C" __global__') for line in lines)
    assert sanitize_all.TORCHS_OWN == "kns=_ZN2at"
