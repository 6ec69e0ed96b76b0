"""Pytest plugin that writes the outcome of each test to a file as soon as it is known, one JSON object per line.

pytest -p outcomes --outcomes FILE ...          with this folder on PYTHONPATH
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

REASON_CHARACTERS = 2000
STICKY = ("CUDA error", "CUDA_ERROR_", "cudaError")  # after one of these all further calls of the process fail


class Writer:
    """Appends what happens to the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spoilt_by = ""

    def write(self, **entry: str | float) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self.write(event="module", test=report.nodeid, outcome=report.outcome, reason=describe(report))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.write(event="collected", test=item.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.spoilt_by:
            pytest.exit(f"{self.spoilt_by} left the GPU's context broken", returncode=1)
        self.write(event="started", test=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        reason = "" if report.outcome == "passed" else describe(report)
        self.write(
            event="ended", test=report.nodeid, outcome=report.outcome, seconds=report.duration, reason=reason
        )
        if report.outcome == "failed" and any(word in reason for word in STICKY):
            self.spoilt_by = report.nodeid

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write(event="finished", test=nodeid)


def describe(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Returns why a test failed or was skipped; of long texts the end, which has the error."""
    if isinstance(report.longrepr, tuple):  # file, line and reason of a skip
        return str(report.longrepr[2])
    return report.longreprtext[-REASON_CHARACTERS:]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, required=True, help="file to append to")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Writer(config.getoption("--outcomes")), "outcomes-writer")
