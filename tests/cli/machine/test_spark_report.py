"""The verb spark-report: an error before anything runs if its file cannot be written."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from firesteel import UserError
from firesteel.spark_report.report import PartReport


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("/gone/report.zip", "there is no folder /gone"),
        ("/proc/x.zip", "cannot write /proc/x.zip: "),
        ("/tmp", "cannot write /tmp: Is a directory"),
    ],
)
def test_unwritable_file_is_an_error(run, out, message):
    result = run("spark-report", "--out", out)
    assert isinstance(result.exception, UserError) and message in str(result.exception)


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((0, 3), 3), ((3, 1), 1), ((0, 125), 1)])
def test_exit_code_is_that_of_the_worst_part(run, monkeypatch, codes, code):
    parts = [
        PartReport(name="a", command="", exit_code=exit_code, seconds=1.0, result=None, last_words="")
        for exit_code in codes
    ]
    monkeypatch.setattr("firesteel.spark_report.run.make_report", lambda *_, **__: parts)
    assert run("spark-report").exit_code == code


def read_command(child):
    """Returns the words of a process; none if it has ended."""
    try:
        return child.cmdline()
    except psutil.NoSuchProcess:  # or ZombieProcess, a kind of it
        return []


def test_sigterm_ends_the_running_part_too(tmp_path):
    """A part that went on would keep tens of GiB of a machine whose owner believes that the report has ended."""
    command = [sys.executable, "-m", "firesteel", "spark-report", "--quick", "--out", str(tmp_path / "r.zip")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline, children = time.monotonic() + 100, []
    while not children or not (tmp_path / "r.zip").is_file():
        assert time.monotonic() < deadline and process.poll() is None
        children = [child for child in psutil.Process(process.pid).children() if "doctor" in read_command(child)]
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert not psutil.wait_procs(children, timeout=10)[1]
