"""The live table."""

import io

from rich.console import Console

from firesteel.cli.lab_board import Board, mark
from firesteel.lab.levels import LevelResult
from firesteel.lab.order import Order


def shown(board):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(board)
    return console.export_text()


def test_rows_say_what_is_done_what_runs_and_what_waits():
    board = Board(Order(mode="verify"))
    board.end(LevelResult(level="1", passed=True, reason="all is well", seconds=1.25))
    board.begin("1.5")
    board.tell("reading the ledger")
    text = shown(board)
    assert "all is well" in text and "1.2" in text and "reading the ledger" in text and "2 correctness" in text
    board.end(LevelResult(level="1.5", passed=False, reason="marlin ran"))
    assert "FAILED" in shown(board) and "reading the ledger" not in shown(board)


def test_marks_tell_failed_invalid_unjudged_and_passed_apart():
    results = [
        LevelResult(level="1", passed=False, reason=""),
        LevelResult(level="4", passed=True, valid=False, reason=""),
        LevelResult(level="5", passed=True, was_run=False, reason=""),
        LevelResult(level="1", passed=True, reason=""),
    ]
    assert [str(mark(one)) for one in results] == ["FAILED", "INVALID", "not judged", "passed"]
