"""The verb `lab matrix` with a server of known speed, whose flags are its gates."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from firesteel.lab.matrix.result import Matrix, summarise

MOCK = str(Path(__file__).parents[2] / "lab" / "mock.py")


@pytest.mark.slow
def test_cells_are_measured_once_with_their_flags(run, tmp_path):
    engine = f"{shlex.quote(sys.executable)} {shlex.quote(MOCK)} port={{port}}"
    # A gate of another engine becomes --NAME VALUE, which the mock refuses, so that the cell crashes.
    words = ["lab", "matrix", "--engine", engine, "--model", "none", "--gates", "speed=1", "--out", str(tmp_path)]
    result = run(*words)
    assert result.exit_code == 1
    [cell] = json.loads((tmp_path / "result.json").read_text())["matrix"]["cells"]
    assert (
        cell["status"] == "crashed"
        and "--speed" in cell["reason"] + (tmp_path / "cells" / "speed=1" / "server.log").read_text()
    )
    first = (tmp_path / "cells" / "speed=1.json").stat().st_mtime_ns
    assert run(*words).exit_code == 1
    assert (tmp_path / "cells" / "speed=1.json").stat().st_mtime_ns == first
    assert (tmp_path / "report.html").is_file()


def test_key_in_the_command_is_in_neither_result_nor_report(run, tmp_path, monkeypatch):
    empty = summarise(Matrix(gates={}), [])
    monkeypatch.setattr("firesteel.lab.matrix.matrix.run_matrix", lambda *args, **fields: empty)
    engine = "server --port {port} --api-key sk-123"
    run("lab", "matrix", "--engine", engine, "--model", "none", "--gates", "speed=1", "--out", str(tmp_path))
    written = [path.read_text() for path in tmp_path.iterdir() if path.is_file()]
    assert len(written) == 3 and not any("sk-123" in text for text in written)


@pytest.mark.slow
def test_measured_cell_has_figures(run, tmp_path):
    engine = f"{shlex.quote(sys.executable)} {shlex.quote(MOCK)} port={{port}} tg_tok_s=200"
    result = run(
        "lab", "matrix", "--engine", engine, "--model", "none", "--gates", "any=off", "--out", str(tmp_path)
    )
    assert result.exit_code == 0, result.output
    [cell] = json.loads((tmp_path / "result.json").read_text())["matrix"]["cells"]
    assert 150 < cell["figures"]["tg_tok_s"] < 220 and cell["figures"]["startup_s"] > 0


@pytest.mark.slow
def test_matrix_stops_its_cell_on_sigterm_and_continues_later(run, tmp_path):
    engine = f"{shlex.quote(sys.executable)} {shlex.quote(MOCK)} port={{port}} tg_tok_s=200"
    words = ["lab", "matrix", "--engine", engine, "--model", "none", "--gates", "any=off", "--out", str(tmp_path)]
    matrix = subprocess.Popen(
        [sys.executable, "-m", "firesteel", *words], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    log = tmp_path / "cells" / "any=off" / "server.log"
    deadline = time.monotonic() + 60
    while not log.is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    processes = psutil.Process(matrix.pid).children(recursive=True)
    matrix.send_signal(signal.SIGTERM)
    assert matrix.wait(60) == 143 and len(processes) >= 2
    assert not any(process.is_running() for process in processes)
    assert not (tmp_path / "cells" / "any=off.json").exists()
    assert run(*words).exit_code == 0


def test_wrong_gates_are_refused_before_anything_starts(run, tmp_path):
    result = run("lab", "matrix", "--gates", "nothing=1,2", "--out", str(tmp_path / "out"))
    assert "no gate" in str(result.exception) and not (tmp_path / "out").exists()
