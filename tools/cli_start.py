"""Measures the CPU time (user and system) of what the command line does before any work: help, errors, completions.

python tools/cli_start.py [RUNS]          # default: 5; replaces records/cli-start

Each command runs in a process of its own, RUNS times after one that is not counted. There is a record per kind of
command; its samples are seconds of CPU, and its parameters have the median of each command.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from firesteel.cli.verbs import VERBS
from firesteel.config import child_environment, resolve
from firesteel.device import find_device
from firesteel.measure.record import Record

OUT = Path(__file__).parents[1] / "records" / "cli-start"
PROGRAM = (sys.executable, "-m", "firesteel")
ERRORS = (
    "serv",
    "ps",
    "serve --prot 1",
    "lab run --quik",
    "roofline",
    "generate x --model gpt-oss-2b",
    "serve /no/such/model",
)
COMPLETIONS = ("firesteel ", "firesteel bench ", "firesteel serve --", "firesteel serve --model ")
KINDS: dict[str, Sequence[str]] = {
    "help": ["--help", "--version", *(f"{name} --help" for name in VERBS), "serve --help-all"],
    "errors": ERRORS,
    "completions": COMPLETIONS,
}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    shutil.rmtree(OUT, ignore_errors=True)
    for kind, lines in KINDS.items():
        record = measure(kind, lines, runs)
        record.save(OUT)
        medians = record.parameters["median_s"]
        slowest = max(medians, key=lambda line: medians[line])
        print(
            f"{kind}: {statistics.median(record.samples):.3f} s of CPU, at most {medians[slowest]:.3f} ({slowest})"
        )


def measure(kind: str, lines: Sequence[str], runs: int) -> Record:
    """Returns the record of the commands of a kind."""
    samples = {line: [cpu_s(*command_of(kind, line)) for _ in range(runs + 1)][1:] for line in lines}
    return Record.now(
        find_device("cpu"),
        resolve({}).config,
        name=f"cli start {kind}",
        unit="s of CPU",
        samples=[sample for line in lines for sample in samples[line]],
        warmups=1,
        parameters={"median_s": {line: statistics.median(samples[line]) for line in lines}, "runs": runs},
    )


def command_of(kind: str, line: str) -> tuple[list[str], dict[str, str]]:
    """Returns the words and the environment of a command; shells complete with the environment."""
    if kind != "completions":
        return [*PROGRAM, *line.split()], {}
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    launch = "import sys; sys.argv = ['firesteel']; from firesteel.cli import main; main()"
    return [sys.executable, "-c", launch], {"_FIRESTEEL_COMPLETE": "complete_bash", **words}


def cpu_s(command: Sequence[str], variables: Mapping[str, str]) -> float:
    """Runs a command; returns the seconds of CPU that its process took."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=child_environment(variables), stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
