"""The live table."""

import io

from rich.console import Console

from firesteel.cli.lab.run_table import PlainTable, RunTable, describe_verdict
from firesteel.lab.level import BENCHMARK, KERNEL_PATH, MATRIX, REGRESSION, SMOKE, STRESS
from firesteel.lab.level_result import LevelResult
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict


def shown(table):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_rows_show_done_running_and_waiting_levels():
    table = RunTable(LabSpec(mode="verify"))
    table.end(LevelResult(level=SMOKE, verdict=Verdict.PASSED, reason="all is well", seconds=1.25))
    table.begin(KERNEL_PATH)
    table.progress("reading the ledger")
    text = shown(table)
    assert "all is well" in text and "1.2" in text and "reading the ledger" in text and "2 correctness" in text
    table.end(LevelResult(level=KERNEL_PATH, verdict=Verdict.FAILED, reason="marlin ran"))
    assert "FAILED" in shown(table) and "reading the ledger" not in shown(table)


def print_lines(quiet_s):
    console = Console(width=120, file=io.StringIO())
    table = PlainTable(LabSpec(), console, quiet_s)
    table.begin(STRESS)
    table.progress("1 of 200 requests")
    table.end(LevelResult(level=STRESS, verdict=Verdict.PASSED, reason="all is well"))
    return console.file.getvalue()


def test_plain_lines_show_progress_but_not_too_often():
    assert "level 3 stress ...\n  level 3, 0 s: 1 of 200 requests\nlevel 3 stress: passed" in print_lines(0.0)
    assert "1 of 200" not in print_lines(60.0)


def test_verdicts_are_distinguished():
    results = [
        LevelResult(level=SMOKE, verdict=Verdict.FAILED, reason=""),
        LevelResult(level=BENCHMARK, verdict=Verdict.PASSED, valid=False, reason=""),
        LevelResult(level=REGRESSION, verdict=Verdict.UNPROVEN, reason=""),
        LevelResult(level=MATRIX, verdict=Verdict.NOT_APPLICABLE, reason=""),
        LevelResult(level=SMOKE, verdict=Verdict.PASSED, reason=""),
    ]
    texts = [describe_verdict(result) for result in results]
    assert [str(text) for text in texts] == ["FAILED", "INVALID", "not judged", "not applicable", "passed"]
    assert [text.style for text in texts] == ["bold red", "bold red", "bold yellow", "dim", "green"]
