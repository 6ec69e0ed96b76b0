"""Runs the parts one after the other, each in its own process, and packs the report after every part.

A part that fails, or crashes the GPU, is in the report with its exit code and the end of its stderr, and the others
still run. A guard ends a part while the host still has memory to do so: on unified memory a machine without free
memory stops answering.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil  # type: ignore[import-untyped]

from firesteel.device import GIB, DeviceSpec
from firesteel.device.host_memory import find_host_memory
from firesteel.spark_report.machine_log import MachineLog
from firesteel.spark_report.pack import check_writable, pack
from firesteel.spark_report.parts import ReportCommand, list_parts
from firesteel.spark_report.private import scrub
from firesteel.spark_report.report import PartReport, Report
from firesteel.surroundings import look_around

PATIENCE_S = 3600  # per part
GUARD_PERIOD_S = 0.25
LEAST_FREE_GIB, LEAST_FREE_SHARE = 2.0, 0.04  # of the host's memory; the larger one ends a part
ROOM_TO_START = 2  # times that much must be free before a part starts
MEMORY_WAIT_S = 120  # for memory that another program, or the part before, gives back
EXIT_S = 30  # until killed processes must be gone
TIMED_OUT, LOW_MEMORY = 124, 125  # exit codes of parts that were ended
LAST_WORDS = 4000  # characters of stderr that are kept
Tell = Callable[[str], None]


def make_report(
    device: DeviceSpec,
    out: Path,
    *,
    quick: bool = False,
    model: Path | None = None,
    tell: Tell = print,
    command: tuple[str, ...] = (),
) -> list[PartReport]:
    """Runs all parts and writes `out`, a zip file, whenever a part begins and ends; `command` starts firesteel."""
    check_writable(out)
    start = command or (sys.executable, "-m", "firesteel")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = list_parts(device, folder, quick=quick, model=model)
        report = Report(
            device=device,
            surroundings=look_around(device),
            quick=quick,
            model=model,
            planned=[part.name for part in parts],
        )
        announce(parts, out, tell)
        try:
            for number, part in enumerate(parts, start=1):
                tell(f"{number} of {len(parts)}: {part.name}, about {show_minutes(part.minutes)} ...")
                report.running = part.name
                pack(out, report, folder)
                report.parts.append(run_part(part, start, device, folder=folder, model=model))
                report.running = ""
                pack(out, report, folder)
                tell(f"   {report.parts[-1].outcome} after {report.parts[-1].seconds:.0f} s")
        finally:
            if len(report.parts) < len(parts):
                tell(f"ended early: {len(report.parts)} of {len(parts)} parts are in {out}")
    return report.parts


def announce(parts: list[ReportCommand], out: Path, tell: Tell) -> None:
    total = show_minutes(sum(part.minutes for part in parts))
    tell(f"{len(parts)} parts, about {total} in all (estimated); {out} is complete after each part")


def show_minutes(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes >= 1 else "1 min"


def run_part(
    part: ReportCommand, start: tuple[str, ...], device: DeviceSpec, *, folder: Path, model: Path | None = None
) -> PartReport:
    begun = time.monotonic()
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr, MachineLog(device) as log:
        exit_code, reason = _run_guarded([*start, *part.arguments], stdout, stderr)
        printed, complaints = _read(stdout), _read(stderr)
    if part.result_file:
        path = folder / part.name / part.result_file
        printed = path.read_text(encoding="utf-8") if path.is_file() else ""
    return PartReport(
        name=part.name,
        command=scrub(" ".join(("firesteel", *part.arguments)), model),
        exit_code=exit_code,
        seconds=round(time.monotonic() - begun, 1),
        expected_minutes=part.minutes,
        result=scrub(_parse(printed), model),
        reason=reason,
        last_words=scrub(complaints[-LAST_WORDS:], model),
        machine=tuple(log.samples),
    )


def find_least_free_bytes() -> int:
    """Returns the free memory below which the guard ends a part; serving keeps more than twice as much free."""
    return int(max(LEAST_FREE_GIB * GIB, LEAST_FREE_SHARE * find_host_memory().total_bytes))


def _run_guarded(command: list[str], stdout: IO[bytes], stderr: IO[bytes]) -> tuple[int, str]:
    """Runs a command; returns its exit code, and why it was ended or not started."""
    least = find_least_free_bytes()
    if reason := _wait_for_memory(ROOM_TO_START * least):
        return LOW_MEMORY, f"not started: {reason}"
    deadline = time.monotonic() + PATIENCE_S
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    try:
        while True:
            try:
                return process.wait(GUARD_PERIOD_S), ""
            except subprocess.TimeoutExpired:
                if reason := _low_memory(least):
                    return LOW_MEMORY, f"stopped: {reason}"
                if time.monotonic() > deadline:
                    return TIMED_OUT, f"stopped after {PATIENCE_S} s"
    finally:
        kill_tree(process)


def _wait_for_memory(least: int) -> str:
    """Waits until `least` bytes are free; returns why that did not happen in time."""
    deadline = time.monotonic() + MEMORY_WAIT_S
    while (reason := _low_memory(least)) and time.monotonic() < deadline:
        time.sleep(GUARD_PERIOD_S)
    return reason


def _low_memory(least: int) -> str:
    free = find_host_memory().available_bytes
    if free >= least:
        return ""
    return f"{free / GIB:.1f} GiB of memory were free, {least / GIB:.1f} are required; end other programs"


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that still runs and its descendants, parents first: a server would restart its engine."""
    if process.poll() is not None:
        return
    root = psutil.Process(process.pid)
    doomed = [root, *root.children(recursive=True)]
    for member in doomed:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(EXIT_S)
    psutil.wait_procs(doomed[1:], timeout=EXIT_S)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def _parse(stdout: str) -> Any:
    """Parses the result; None if the command died before it printed one."""
    try:
        return json.loads(stdout)
    except ValueError:
        return None
