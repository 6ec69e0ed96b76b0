"""The verb `lab run`: exit codes, output and signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

FAKE = Path(__file__).parents[2] / "lab" / "fake_server.py"
HANGS = f"{sys.executable} {FAKE} {{port}} hangs"


@pytest.fixture
def lab(run, tmp_path):
    def call(way, *flags):
        engine = f"{sys.executable} {FAKE} {{port}} {way}"
        return run("lab", "run", "--engine", engine, "--quick", "--out", str(tmp_path), *flags)

    return call


def test_exit_code_is_0_if_all_levels_passed(lab, tmp_path):
    result = lab("well", "--level", "1")
    assert result.exit_code == 0, result.output
    assert "level 1 smoke: passed" in result.output and "report.html" in result.output
    assert "smoke" in (tmp_path / "report.html").read_text() and (tmp_path / "report.md").is_file()
    assert json.loads((tmp_path / "result.json").read_text())["verdict"] == "passed"


def test_exit_code_is_1_with_the_reason_if_a_level_failed(lab):
    result = lab("answers-500", "--level", "1")
    assert result.exit_code == 1 and "FAILED" in result.output and "answered 500" in result.output


@pytest.mark.parametrize(("flags", "code"), [((), 3), (("--allow-unjudged",), 0)])
def test_exit_code_is_3_if_the_kernel_path_was_not_judged_unless_that_is_allowed(lab, tmp_path, flags, code):
    """A server whose kernels nobody saw was "passed", exit code 0."""
    result = lab("well", "--level", "1.5", *flags)
    assert result.exit_code == code, result.output
    assert "UNPROVEN after" in result.output and "not judged: level 1.5; --allow-unjudged" in result.output
    assert json.loads((tmp_path / "result.json").read_text())["verdict"] == "unproven"


@pytest.mark.slow
def test_result_is_enough_for_a_rerun(lab, start, tmp_path):
    lab("well", "--level", "1", "--gates", "a=1,2", "--gates", "b", "--seed", "3")
    once = json.loads((tmp_path / "result.json").read_text())
    again = tmp_path / "again"
    assert start("lab", "rerun", str(tmp_path), "--out", str(again)).returncode == 0
    assert json.loads((again / "result.json").read_text())["order"] == once["order"]


@pytest.mark.slow
def test_stress_has_the_requested_size(lab, tmp_path):
    result = lab("well", "--level", "3", "--requests", "12", "--concurrency", "3", "--sequential", "2")
    content = json.loads((tmp_path / "result.json").read_text())
    figures = next(level for level in content["levels"] if level["level"] == "3")["figures"]
    assert (figures["requests"], figures["concurrency"], figures["sequential"]) == (12, 3, 2), result.output
    assert content["order"]["requests"] == 12


def test_flags_after_two_dashes_are_the_engines(lab, tmp_path):
    lab("well", "--level", "1", "--", "--tile", "auto")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["order"]["flags"] == ["--tile", "auto"] and result["engine"]["command"][-2:] == ["--tile", "auto"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_lab_stops_its_server_on_signals(tmp_path, number):
    lab, server = start_hanging(tmp_path, "lab", "run", "--engine", HANGS, "--level", "1", "--out", str(tmp_path))
    lab.send_signal(number)
    _, output = lab.communicate(timeout=60)
    assert lab.returncode == 128 + number, output
    assert not server.is_running() and (tmp_path / "result.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_rerun_stops_its_server_on_signals(tmp_path, number):
    """An interrupted subprocess.run would kill the lab before it has stopped its server."""
    path, again = tmp_path / "before.json", tmp_path / "again"
    path.write_text(json.dumps({"order": {"engine": HANGS, "level": "1"}, "levels": []}))
    lab, server = start_hanging(again, "lab", "rerun", str(path), "--out", str(again))
    lab.send_signal(number)
    _, output = lab.communicate(timeout=60)
    assert lab.returncode == 128 + number, output
    assert not server.is_running() and (again / "result.json").is_file()


def start_hanging(folder, *words):
    """Returns the program, and the server that it started and sent a request to."""
    lab = subprocess.Popen(
        [sys.executable, "-m", "firesteel", *words],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    deadline = time.monotonic() + 60
    while not (folder / "server.log").is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    children = psutil.Process(lab.pid).children()  # another one may ask the server's Python for versions
    [server] = [child for child in children if "fake_server.py" in " ".join(child.cmdline())]
    return lab, server
