"""The live table."""

import io

from rich.console import Console

from firesteel.cli.lab.board import Board, Lines, mark
from firesteel.lab.level import LevelResult
from firesteel.lab.spec import LabSpec


def shown(board):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(board)
    return console.export_text()


def test_rows_say_what_is_done_what_runs_and_what_waits():
    board = Board(LabSpec(mode="verify"))
    board.end(LevelResult(level="1", passed=True, reason="all is well", seconds=1.25))
    board.begin("1.5")
    board.tell("reading the ledger")
    text = shown(board)
    assert "all is well" in text and "1.2" in text and "reading the ledger" in text and "2 correctness" in text
    board.end(LevelResult(level="1.5", passed=False, reason="marlin ran"))
    assert "FAILED" in shown(board) and "reading the ledger" not in shown(board)


def told(quiet_s):
    console = Console(width=120, file=io.StringIO())
    lines = Lines(LabSpec(), console, quiet_s)
    lines.begin("3")
    lines.tell("1 of 200 requests")
    lines.end(LevelResult(level="3", passed=True, reason="all is well"))
    return console.file.getvalue()


def test_without_a_terminal_progress_is_told_but_not_too_often():
    assert "level 3 stress ...\n  level 3, 0 s: 1 of 200 requests\nlevel 3 stress: passed" in told(0.0)
    assert "1 of 200" not in told(60.0)


def test_marks_tell_failed_invalid_unjudged_and_passed_apart():
    results = [
        LevelResult(level="1", passed=False, reason=""),
        LevelResult(level="4", passed=True, valid=False, reason=""),
        LevelResult(level="5", passed=True, was_run=False, reason=""),
        LevelResult(level="1", passed=True, reason=""),
    ]
    assert [str(mark(one)) for one in results] == ["FAILED", "INVALID", "not judged", "passed"]
