"""The live table."""

import io

from rich.console import Console

from firesteel.cli.lab.board import PlainBoard, RunBoard, describe_verdict
from firesteel.lab.level import BENCHMARK, KERNEL_PATH, REGRESSION, SMOKE, STRESS
from firesteel.lab.level_result import LevelResult
from firesteel.lab.spec import LabSpec


def shown(board):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(board)
    return console.export_text()


def test_rows_show_done_running_and_waiting_levels():
    board = RunBoard(LabSpec(mode="verify"))
    board.end(LevelResult(level=SMOKE, passed=True, reason="all is well", seconds=1.25))
    board.begin(KERNEL_PATH)
    board.progress("reading the ledger")
    text = shown(board)
    assert "all is well" in text and "1.2" in text and "reading the ledger" in text and "2 correctness" in text
    board.end(LevelResult(level=KERNEL_PATH, passed=False, reason="marlin ran"))
    assert "FAILED" in shown(board) and "reading the ledger" not in shown(board)


def print_lines(quiet_s):
    console = Console(width=120, file=io.StringIO())
    board = PlainBoard(LabSpec(), console, quiet_s)
    board.begin(STRESS)
    board.progress("1 of 200 requests")
    board.end(LevelResult(level=STRESS, passed=True, reason="all is well"))
    return console.file.getvalue()


def test_plain_lines_show_progress_but_not_too_often():
    assert "level 3 stress ...\n  level 3, 0 s: 1 of 200 requests\nlevel 3 stress: passed" in print_lines(0.0)
    assert "1 of 200" not in print_lines(60.0)


def test_verdicts_are_distinguished():
    results = [
        LevelResult(level=SMOKE, passed=False, reason=""),
        LevelResult(level=BENCHMARK, passed=True, valid=False, reason=""),
        LevelResult(level=REGRESSION, passed=True, was_run=False, reason=""),
        LevelResult(level=SMOKE, passed=True, reason=""),
    ]
    assert [str(describe_verdict(result)) for result in results] == ["FAILED", "INVALID", "not judged", "passed"]
