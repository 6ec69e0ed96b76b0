"""Progress of a download, with and without a terminal."""

import io
import re

import pytest
from rich.console import Console

from firesteel.cli.model import transfer
from firesteel.cli.model.transfer import transfer_progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which the test sets."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_lines_have_share_speed_and_remaining_time(capsys, clock):
    with transfer_progress("model", 10_000_000) as report:
        report(10_000_000, 100_000_000)
        clock[0] += 2
        report(12_000_000, 100_000_000)  # less than the next line
        report(30_000_000, 100_000_000)
        clock[0] += 7
        report(100_000_000, 100_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "10 %: 10.0 MB of 100.0 MB",
        "30 %: 30.0 MB of 100.0 MB, 10.0 MB/s, 7 s left",
        "100 %: 100.0 MB of 100.0 MB, 10.0 MB/s, 0 s left",
    ]


def test_lines_are_few(capsys):
    with transfer_progress("model", 0) as report:
        for done in range(1001):
            report(done, 1000)
    assert len(capsys.readouterr().err.splitlines()) == 21


def test_nothing_to_fetch_is_a_line(capsys):
    with transfer_progress("model", 0) as report:
        report(0, 0)
    assert capsys.readouterr().err == "0 %: 0 bytes of 0 bytes\n"


def test_terminal_gets_a_bar_of_all_bytes(monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(transfer, "Console", lambda stderr: terminal)
    with transfer_progress("gpt-oss-20b", 3_000_000) as report:
        report(7_000_000, 14_000_000)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "gpt-oss-20b" in text and "7.0/14.0 MB" in text
