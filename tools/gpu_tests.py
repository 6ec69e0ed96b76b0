"""Runs the tests of the tier `gpu` in several processes, as far as a time limit allows: `make test-gpu`.

python tools/gpu_tests.py [--jobs N] [--seconds N] [--out FILE] [--after FILE] [PATH ...]

Needs pytest and what the tests import, no other plugin, and no installation of the package. Paths are run in the
given order. Outcomes are written as they come; `--after` leaves out the tests that passed in the run of that file,
so that a run that was cut off can be continued. A test that ends its process, or breaks the GPU's context, is
counted, and the tests behind it run in a new process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).parents[1]
TIER = "gpu"
PASSED, FAILED, SKIPPED, CRASHED, UNREACHED = "passed", "failed", "skipped", "crashed", "not reached"
OUTCOMES = (PASSED, FAILED, CRASHED, SKIPPED, UNREACHED)
MOST_JOBS = 10
GIB_PER_JOB = 12  # the largest tests hold a few layers of gpt-oss-120b
MOST_LINES = 12  # shown per failure
POLL_S = 0.1


@dataclass(slots=True)
class Results:
    """Outcome and reason of each test, in the order of collection."""

    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)  # why a module could not be collected

    def record(self, test: str, outcome: str, reason: str = "") -> None:
        if self.outcomes.get(test) in (FAILED, CRASHED):  # a failure stays one, whatever the teardown does
            return
        self.outcomes[test] = outcome
        if reason:
            self.reasons[test] = reason

    def read(self, entries: Iterable[dict[str, str]]) -> None:
        """Adds the entries that the plugin `outcomes` wrote."""
        for entry in entries:
            if entry["event"] == "collected":
                self.outcomes.setdefault(entry["test"], UNREACHED)
            elif entry["event"] == "module":
                self.modules[entry["test"]] = f"{entry['outcome']}: {entry['reason']}"
            elif entry["event"] == "started":  # in a later run, too: what was known is out of date
                self.outcomes[entry["test"]] = UNREACHED
                self.reasons.pop(entry["test"], None)
            elif entry["event"] == "ended":
                self.record(entry["test"], entry["outcome"], entry["reason"])

    @property
    def exit_code(self) -> int:
        """1: a test failed; 3: nothing failed, but not all tests could be judged."""
        counts = Counter(self.outcomes.values())
        broken = any(reason.startswith(FAILED) for reason in self.modules.values())
        if counts[FAILED] or counts[CRASHED] or broken:
            return 1
        return 0 if counts[PASSED] and counts[PASSED] == len(self.outcomes) and not self.modules else 3


class Deadline:
    """The time at which all processes are ended."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end

    def end_now(self) -> None:
        self.end = 0.0


def read_entries(path: Path, offset: int = 0) -> list[dict[str, str]]:
    """Returns the entries of a file behind `offset`; a line that is cut off, by a killed process, is no entry."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_bytes()[offset:].decode(errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            entries.append(json.loads(line))
    return entries


def run_pytest(out: Path, flags: Sequence[str], deadline: Deadline) -> str:
    """Runs pytest, in a process group that is killed at the deadline, and returns its output."""
    paths = [str(ROOT / "src"), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "pytest", "-p", "outcomes", "--outcomes", str(out.absolute())]
    command += ["-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-m", TIER, *flags]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        while process.poll() is None:
            if deadline.is_over:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(POLL_S)
        said.seek(0)
        return said.read().decode(errors="replace")


def run_module(tests: Sequence[str], out: Path, deadline: Deadline) -> list[dict[str, str]]:
    """Runs the tests of a module, in further processes if one of them ends early, and returns the entries."""
    left, entries = list(tests), []
    while left and not deadline.is_over:
        offset = out.stat().st_size if out.exists() else 0
        said = run_pytest(out, left, deadline)
        written = [entry for entry in read_entries(out, offset) if entry["test"] in left]
        ended = {entry["test"] for entry in written if entry["event"] == "ended"}
        finished = {entry["test"] for entry in written if entry["event"] == "finished"}
        started = [entry["test"] for entry in written if entry["event"] == "started"]
        if not deadline.is_over and started and started[-1] not in finished:
            crash = {"event": "ended", "test": started[-1], "outcome": CRASHED, "reason": "its process ended"}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(crash) + "\n")
            written.append(crash)
            ended.add(started[-1])
        entries += written
        if not ended:
            if not deadline.is_over:
                print(said)  # why none of them could run
            break
        left = [test for test in left if test not in ended]
    return entries


def run(paths: Sequence[str], *, jobs: int, seconds: float, out: Path, passed: set[str]) -> Results:
    """Collects and runs the tests below `paths`, without those that `passed`."""
    deadline = Deadline(seconds)
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        collected = Path(folder) / "collected.jsonl"
        said = run_pytest(collected, ["--collect-only", *paths], deadline)
        results.read(entry for entry in read_entries(collected) if entry["test"] not in passed)
    if not results.outcomes:
        print(said)
    modules: dict[str, list[str]] = {}
    for test in results.outcomes:
        modules.setdefault(test.split("::")[0], []).append(test)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for entries in pool.map(lambda tests: run_module(tests, out, deadline), modules.values()):
                results.read(entries)
        finally:
            deadline.end_now()  # an interrupt ends the processes too
    return results


def show(results: Results, console: Console) -> None:
    """Prints what failed, and a table of outcomes per folder."""
    for test, outcome in results.outcomes.items():
        if outcome in (FAILED, CRASHED):
            lines = results.reasons.get(test, "").splitlines()[-MOST_LINES:]
            console.print(f"[red]{outcome}[/] {escape(test)}\n[dim]{escape(chr(10).join(lines))}[/]")
    for module, reason in results.modules.items():
        console.print(f"[yellow]not collected[/] {escape(module)}: {escape(reason.splitlines()[-1])}")
    table = Table("tests", *OUTCOMES)
    folders: dict[str, Counter[str]] = {}
    for test, outcome in results.outcomes.items():
        folders.setdefault(str(Path(test.split("::")[0]).parent), Counter())[outcome] += 1
    for name, counts in [*sorted(folders.items()), ("all", Counter(results.outcomes.values()))]:
        table.add_row(name, *(str(counts[outcome] or "") for outcome in OUTCOMES))
    console.print(table)


def count_jobs() -> int:
    """Returns how many processes fit this machine: its cores and the memory of its GPU."""
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"the tier {TIER} needs an NVIDIA GPU: torch {torch.__version__} sees none")
    gib = torch.cuda.get_device_properties(0).total_memory // 2**30
    return max(1, min(MOST_JOBS, len(os.sched_getaffinity(0)), gib // GIB_PER_JOB))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", default=["tests"], metavar="PATH", help="files and folders of tests")
    parser.add_argument("--jobs", type=int, help="processes (default: by the cores and the GPU's memory)")
    parser.add_argument("--seconds", type=float, default=3600, help="time limit, s (default: 3600)")
    parser.add_argument("--out", type=Path, default=Path("gpu-tests.jsonl"), help="outcomes, appended to")
    parser.add_argument("--after", type=Path, help="outcomes of an earlier run: what passed there is left out")
    chosen = parser.parse_args()
    before = Results()
    if chosen.after is not None:
        if not chosen.after.exists():
            parser.error(f"--after: no file {chosen.after}")
        before.read(read_entries(chosen.after))
    passed = {test for test, outcome in before.outcomes.items() if outcome == PASSED}
    most_jobs = count_jobs()
    results = run(
        chosen.paths, jobs=chosen.jobs or most_jobs, seconds=chosen.seconds, out=chosen.out, passed=passed
    )
    show(results, Console())
    return results.exit_code


if __name__ == "__main__":
    sys.exit(main())
