"""Runs the program: in process, or as a user starts it."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from firesteel.cli import app


@pytest.fixture(scope="session")
def run():
    """run("env", "--json", VARIABLE="value") in this process."""

    def invoke(*arguments, **environment):
        return CliRunner().invoke(app, [*arguments], env=environment)

    return invoke


@pytest.fixture(scope="session")
def start():
    """firesteel in a process of its own, through its entry point."""

    def begin(*arguments, **environment):
        command = [sys.executable, "-W", "error", "-m", "firesteel", *arguments]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", **environment}
        return subprocess.run(command, capture_output=True, encoding="utf-8", env=variables, timeout=120)

    return begin


@pytest.fixture(scope="session")
def shown():
    """Rows of `env --json` by name."""

    def parse(result):
        assert result.exit_code == 0, result.output
        return {row["name"]: row for row in json.loads(result.stdout)}

    return parse


@pytest.fixture(scope="session")
def rows_of():
    """Cells of a table's rows, from its text."""

    def split(text):
        lines = (line for line in text.splitlines() if "│" in line)
        return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]

    return split
