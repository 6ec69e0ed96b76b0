"""Every kernel under compute-sanitizer, several ops beside each other: `make sanitize` where there is a GPU.

python tools/sanitize_all.py [--jobs N] [--seconds N] [OP ...]          # of all ops, or of those named

First each op runs without it: kernels are compiled then, and kept, which takes longer than to watch them.
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

from firesteel.kernels import ALL_OPS

WATCHED = (sys.executable, str(Path(__file__).with_name("sanitize.py")))
ALONE = "compiling"
TOOLS = {"memcheck": (), "racecheck": ("--all-arrive",)}
SANITIZER = ("compute-sanitizer", "--report-api-errors", "no", "--error-exitcode", "1", "--tool")
NO_POOL = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # which would hide reads past an end
CLEAN, BROKEN, UNFINISHED = "clean", "broken", "unfinished"


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
        return sum(line.startswith(self.job.op) for line in self.lines)

    @property
    def last_words(self) -> str:
        """The sanitizer's summary, where it came so far."""
        said = [line for line in self.lines if "SUMMARY" in line] or list(self.lines)
        return said[-1].strip("= ") if said else ""


def main() -> None:
    """Of all ops those of decoding, which are named last, begin: they take longest."""
    parser = argparse.ArgumentParser(description="Watch every kernel with compute-sanitizer.")
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="ops beside each other")
    parser.add_argument("--seconds", type=float, default=None, help="to be done in; without it there is no end")
    given = parser.parse_args()
    names = [op.name for op in ALL_OPS]
    if unknown := [name for name in given.ops if name not in names]:
        parser.error(f"no op is called {unknown[0]}; there are {', '.join(names)}")
    if shutil.which(SANITIZER[0]) is None:
        sys.exit(f"{SANITIZER[0]} is not on the PATH: it comes with CUDA's toolkit")
    if not run(given.ops or names[::-1], given.jobs, given.seconds, Console(width=120)):
        sys.exit(1)


def run(ops: Sequence[str], jobs: int, seconds: float | None, console: Console) -> bool:
    """Whether all were watched to the end and nothing was found."""
    end = None if seconds is None else time.monotonic() + seconds
    alone = [Job(op, ALONE, flags) for flags in TOOLS.values() for op in ops]
    watched = [Job(op, tool, flags) for tool, flags in TOOLS.items() for op in ops]
    done = [*work(alone, jobs, end, console), *work(watched, jobs, end, console)]
    console.print(table_of(done))
    for one in done:
        if one.verdict != CLEAN:
            console.print(f"{one.job.op}, {one.job.tool}: {one.verdict}", style="bold")
            console.print("\n".join(one.lines[-30:]), markup=False, highlight=False)
    return all(one.verdict == CLEAN for one in done)


def work(todo: Sequence[Job], jobs: int, end: float | None, console: Console) -> list[Done]:
    def one(job: Job) -> Done:
        found = do(job, end)
        console.print(f"{job.op}, {job.tool}: {found.verdict} ({found.seconds:.0f} s)", highlight=False)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, todo))


def do(job: Job, end: float | None) -> Done:
    """The job with all that it started is gone afterwards."""
    start = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **({} if job.tool == ALONE else NO_POOL)}
    process = subprocess.Popen(
        job.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=None if end is None else max(0.0, end - start))
        verdict = BROKEN if process.returncode else CLEAN
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        verdict = UNFINISHED
    return Done(job=job, verdict=verdict, seconds=time.monotonic() - start, lines=tuple(said.splitlines()))


def table_of(done: Sequence[Done]) -> Table:
    table = Table("op", "tool", "samples", "seconds", "verdict", "last words")
    for one in done:
        if one.job.tool != ALONE or one.verdict != CLEAN:
            table.add_row(
                one.job.op, one.job.tool, str(one.samples), f"{one.seconds:.0f}", one.verdict, one.last_words
            )
    return table


if __name__ == "__main__":
    main()
