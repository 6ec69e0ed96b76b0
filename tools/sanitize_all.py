"""Runs every kernel under compute-sanitizer, several ops in parallel: `make sanitize` on a GPU machine.

python tools/sanitize_all.py [--jobs N] [--seconds N] [OP ...]          # all ops, or the named ones

First each op runs without the sanitizer to compile and cache its kernels, which takes longer than the check.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from firesteel.kernels.registry import ALL_OPS
from sanitize import NO_IMPLEMENTATION

WATCHED = (sys.executable, str(Path(__file__).with_name("sanitize.py")))
ALONE = "compiling"
TOOLS = {"memcheck": (), "racecheck": ("--all-arrive",)}
TORCHS_OWN = "kns=_ZN2at"  # mangled names of torch's kernels, which references launch: excluded
SANITIZER = (
    "compute-sanitizer",
    "--report-api-errors",
    "no",
    "--error-exitcode",
    "1",
    "--kernel-name-exclude",
    TORCHS_OWN,
    "--tool",
)
NO_POOL = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # the pool would hide reads past the end of a tensor
CLEAN, BROKEN, UNFINISHED, NOTHING = "clean", "broken", "unfinished", "nothing ran"
REPORT = "========="  # begins each line of the sanitizer's output
MOST_LINES = 60  # shown per job
GRACE_S = 10  # for the pipe of a killed job to close


@dataclass(frozen=True, slots=True)
class Job:
    op: str
    tool: str  # or ALONE
    flags: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        before = () if self.tool == ALONE else (*SANITIZER, self.tool)
        return [*before, *WATCHED, *self.flags, self.op]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    job: Job
    verdict: str
    seconds: float
    lines: tuple[str, ...]

    @property
    def samples(self) -> int:
        return count_samples(self.job.op, self.lines)

    @property
    def last_words(self) -> str:
        """The sanitizer's summary, if it got that far."""
        said = [line for line in self.lines if "SUMMARY" in line] or list(self.lines)
        return said[-1].strip("= ") if said else ""

    @property
    def findings(self) -> tuple[str, ...]:
        """Output from the sanitizer's first report on, or the end of the output if there is none."""
        for number, line in enumerate(self.lines):
            if line.startswith(REPORT) and "COMPUTE-SANITIZER" not in line and "SUMMARY" not in line:
                return self.lines[number : number + MOST_LINES]
        return self.lines[-MOST_LINES:]


def count_samples(op: str, lines: Sequence[str]) -> int:
    """Counts the samples in the output of tools/sanitize.py that some kernel accepted."""
    return sum(line.startswith(op) and line.endswith(" s)") and NO_IMPLEMENTATION not in line for line in lines)


def main() -> None:
    """Checks the given ops, or all, in reverse order: the decode ops are last in the list and take longest."""
    parser = argparse.ArgumentParser(description="Watch every kernel with compute-sanitizer.")
    parser.add_argument("ops", nargs="*", metavar="OP")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="ops in parallel (default: number of CPU cores)")
    parser.add_argument("--seconds", type=float, default=None, help="time limit in seconds (default: none)")
    given = parser.parse_args()
    names = [op.name for op in ALL_OPS]
    if unknown := [name for name in given.ops if name not in names]:
        parser.error(f"unknown op {unknown[0]}; the ops are {', '.join(names)}")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: must be at least 1")
    if shutil.which(SANITIZER[0]) is None:
        sys.exit(f"{SANITIZER[0]} is not on the PATH: install the CUDA toolkit, which contains it")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # children are killed then too
    if not run(given.ops or names[::-1], given.jobs, given.seconds, Console(width=120)):
        sys.exit(1)


def run(ops: Sequence[str], jobs: int, seconds: float | None, console: Console) -> bool:
    """Returns whether all ops were checked to the end without a report."""
    end = None if seconds is None else time.monotonic() + seconds
    alone = [Job(op, ALONE, flags) for flags in TOOLS.values() for op in ops]
    watched = [Job(op, tool, flags) for tool, flags in TOOLS.items() for op in ops]
    done = [*work(alone, jobs, end, console), *work(watched, jobs, end, console)]
    console.print(table_of(done))
    for outcome in done:
        if outcome.verdict != CLEAN:
            console.print(f"{outcome.job.op}, {outcome.job.tool}: {outcome.verdict}", style="bold")
            console.print("\n".join(outcome.findings), markup=False, highlight=False)
    return all(outcome.verdict == CLEAN for outcome in done)


def work(todo: Sequence[Job], jobs: int, end: float | None, console: Console) -> list[Done]:
    """Runs jobs; an interrupt leaves none of them running."""
    running: set[subprocess.Popen[str]] = set()

    def one(job: Job) -> Done:
        outcome = do(job, end, running)
        console.print(f"{job.op}, {job.tool}: {outcome.verdict} ({outcome.seconds:.0f} s)", highlight=False)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        tasks = [pool.submit(one, job) for job in todo]
        try:
            return [task.result() for task in tasks]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                kill(process)
            raise


def do(job: Job, end: float | None, running: set[subprocess.Popen[str]]) -> Done:
    """Runs a job, and kills its process group if it is not done in time."""
    start = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **({} if job.tool == ALONE else NO_POOL)}
    process = subprocess.Popen(
        job.command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    running.add(process)
    try:
        said, _ = process.communicate(timeout=None if end is None else max(0.0, end - start))
        lines = tuple(said.splitlines())
        verdict = BROKEN if process.returncode else CLEAN if count_samples(job.op, lines) else NOTHING
    except subprocess.TimeoutExpired:
        kill(process)
        lines, verdict = tuple(read_rest(process).splitlines()), UNFINISHED
    finally:
        running.discard(process)
    return Done(job=job, verdict=verdict, seconds=time.monotonic() - start, lines=lines)


def kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def read_rest(process: subprocess.Popen[str]) -> str:
    """Returns the output of a killed job; a process outside its group may hold the pipe open."""
    try:
        return process.communicate(timeout=GRACE_S)[0]
    except subprocess.TimeoutExpired as error:
        said = error.stdout or ""
        return said.decode(errors="replace") if isinstance(said, bytes) else said


def table_of(done: Sequence[Done]) -> Table:
    table = Table("op", "tool", "samples", "seconds", "verdict", "last words")
    for outcome in done:
        if outcome.job.tool != ALONE or outcome.verdict != CLEAN:
            table.add_row(
                outcome.job.op,
                outcome.job.tool,
                str(outcome.samples),
                f"{outcome.seconds:.0f}",
                outcome.verdict,
                Text(outcome.last_words),
            )
    return table


if __name__ == "__main__":
    main()
