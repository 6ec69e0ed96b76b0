"""Ops under a sanitizer beside each other: what is found, what is cut off, and that nothing is left running."""

import io
import os
import sys
import time

import psutil
import pytest
from rich.console import Console

import sanitize_all

# stands for compute-sanitizer: runs what follows its flags and says what it saw
SANITIZER = """#!/bin/sh
tool="$6"; shift 6
"$@" || { echo "========= ERROR SUMMARY: 1 error"; exit 1; }
[ "$tool-$OP_WITH_RACE" = racecheck-"$4" ] && { echo "========= RACECHECK SUMMARY: 1 hazard displayed"; exit 1; }
echo "========= ERROR SUMMARY: 0 errors"
"""
# stands for tools/sanitize.py OP, which comes last
WATCHED = """
import os, sys, time
op = sys.argv[-1]
print(f"{op}, a sample: cuda (0.1 s)", flush=True)
if op == "slow" and "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
    time.sleep(600)
if op == "wrong":
    sys.exit("wrong cuda a sample: differs")
print(f"{op}, another: cuda (0.1 s)", flush=True)
"""


@pytest.fixture
def sanitizer(tmp_path, monkeypatch):
    """A sanitizer on the PATH, and small programs in place of kernels."""
    path = tmp_path / "compute-sanitizer"
    path.write_text(SANITIZER)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    watched = tmp_path / "watched.py"
    watched.write_text(WATCHED)
    monkeypatch.setattr(sanitize_all, "WATCHED", (sys.executable, str(watched)))


def run(ops, seconds=None):
    shown = io.StringIO()
    return sanitize_all.run(ops, 4, seconds, Console(width=120, file=shown)), shown.getvalue()


def rows(text):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]


@pytest.mark.usefixtures("sanitizer")
def test_each_op_is_watched_by_both_tools():
    is_clean, text = run(["good", "fine"])
    assert is_clean
    assert sorted((op, tool, samples, verdict) for op, tool, samples, _, verdict, _ in rows(text)) == [
        ("fine", "memcheck", "2", "clean"), ("fine", "racecheck", "2", "clean"),
        ("good", "memcheck", "2", "clean"), ("good", "racecheck", "2", "clean"),
    ]  # fmt: skip
    assert {row[-1] for row in rows(text)} == {"ERROR SUMMARY: 0 errors"}


@pytest.mark.usefixtures("sanitizer")
def test_what_is_found_is_shown_and_the_others_are_watched_all_the_same(monkeypatch):
    monkeypatch.setenv("OP_WITH_RACE", "racy")
    is_clean, text = run(["racy", "good", "wrong"])
    verdicts = {(op, tool): verdict for op, tool, _, _, verdict, _ in rows(text)}
    assert not is_clean and verdicts["racy", "memcheck"] == "clean" and verdicts["racy", "racecheck"] == "broken"
    assert verdicts["good", "racecheck"] == "clean" and verdicts["wrong", "memcheck"] == "broken"
    assert verdicts["wrong", "compiling"] == "broken" and "wrong cuda a sample: differs" in text
    assert "RACECHECK SUMMARY: 1 hazard displayed" in text


@pytest.mark.usefixtures("sanitizer")
def test_what_is_not_done_in_time_is_ended_and_says_how_far_it_came():
    start = time.monotonic()
    is_clean, text = run(["slow"], seconds=3)
    assert not is_clean and time.monotonic() - start < 60
    assert {(row[1], row[2], row[4], row[5]) for row in rows(text)} == {
        (tool, "1", "unfinished", "slow, a sample: cuda (0.1 s)") for tool in ("memcheck", "racecheck")
    }
    assert not [one for one in psutil.process_iter(["cmdline"]) if "watched.py" in str(one.info["cmdline"])]


def test_where_there_is_none_it_says_where_to_get_it(monkeypatch):
    monkeypatch.setattr("sys.argv", ["sanitize_all.py"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="compute-sanitizer is not on the PATH: it comes with CUDA's toolkit"):
        sanitize_all.main()


def test_an_op_that_is_none_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sanitize_all.py", "decode_expert"])
    with pytest.raises(SystemExit):
        sanitize_all.main()
    assert "no op is called decode_expert; there are rms_norm" in capsys.readouterr().err
