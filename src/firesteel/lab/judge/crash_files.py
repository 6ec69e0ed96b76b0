"""Diagnoses what ended a server, from its log or its crash bundle alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firesteel.engine.process.crash import LOG, REPORT
from firesteel.errors import UserError
from firesteel.lab.judge.evidence_file import read_json
from firesteel.lab.path.log_message import find_message
from firesteel.lab.servers.diagnosis import EVIDENCE_LINES, Diagnosis, diagnose_kernel
from firesteel.lab.servers.known_errors import LOG_PATTERNS, SPOILING

# A server that answers after an error survived it.
ALIVE = re.compile(
    r"Application startup complete|Uvicorn running on|server is listening on|The server is fired up|"
    r"serving \S+; press Ctrl-C|HTTP/\d(\.\d)?\"? 200\b|done request: .* 200\b",
    re.IGNORECASE,
)
PROCESS = re.compile(r"\(([\w.-]+)(?: [\w.-]+)* pid=(\d+)")  # a prefix of vLLM and of Ray
EXCEPTION = re.compile(r"(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)(?::|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashBundle:
    log: tuple[str, ...] = ()
    cause: str = ""
    kernel: tuple[str, ...] = ()
    processes: Mapping[int, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    ledger: tuple[Mapping[str, Any], ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)  # the diagnosis of the time


def read_bundle(folder: Path) -> CrashBundle:
    report = read_json(folder / REPORT)
    if not isinstance(report, dict) or not isinstance(report.get("cause"), str):
        raise UserError(f"{folder / REPORT} is not the report of a crash bundle")
    around = _mapping(report.get("surroundings"))
    processes = [row for row in around.get("processes") or () if isinstance(row, dict) and "pid" in row]
    log = folder / LOG
    return CrashBundle(
        log=tuple(log.read_text(encoding="utf-8", errors="replace").splitlines()) if log.is_file() else (),
        cause=report["cause"],
        kernel=tuple(map(str, around.get("kernel_messages") or ())),
        processes={int(row["pid"]): str(row.get("name", "")) for row in processes},
        environment={name: str(value) for name, value in _mapping(around.get("environment")).items()},
        ledger=tuple(row for row in report.get("ledger") or () if isinstance(row, dict) and "op" in row),
        stated=_mapping(around.get("diagnosis")),
    )


def diagnose_bundle(bundle: CrashBundle) -> Diagnosis:
    """Returns the cause that the evidence shows or, without one, what the bundle says itself."""
    found = diagnose_kernel(bundle.kernel, bundle.processes) or diagnose_end(bundle.log, is_dead=True)
    if found is not None and found.kind != "exit":
        return found
    stated = bundle.stated
    lines = stated.get("evidence") or bundle.log[-EVIDENCE_LINES:]
    return Diagnosis(
        kind=str(stated.get("kind", "exit")),
        words=str(stated.get("words") or bundle.cause),
        cure=str(stated.get("cure") or "the reason is in the last lines of its log"),
        evidence=tuple(map(str, lines)),
    )


def diagnose_end(log: Sequence[str], *, is_dead: bool = False) -> Diagnosis | None:
    """Returns why a server ended, as its log shows; None for one that answered afterwards, or shows no error.

    Errors that lose answers count even if the server lives on. A line of the kernel counts if it is about a process
    whose pid is in the log or, if there is none, one that is named like an engine's.
    """
    if (found := diagnose_kernel(log, find_processes(log))) is not None:
        return found
    last_alive = (
        -1 if is_dead else max((number for number, line in enumerate(log) if ALIVE.search(line)), default=-1)
    )
    for known in LOG_PATTERNS:
        numbers = known.find_lines(log)
        if numbers and (numbers[-1] > last_alive or known.kind in SPOILING):
            lines = tuple(log[number].strip() for number in numbers[-EVIDENCE_LINES:])
            return Diagnosis(kind=known.kind, words=known.words, cure=known.cure, evidence=lines)
    if last_alive < 0:  # it never answered, so that an unknown exception ended it
        return _find_exception(log)
    return None


def find_processes(log: Sequence[str]) -> dict[int, str]:
    """Returns the processes that wrote a log with pids, by pid."""
    return {int(match[2]): match[1] for line in log if (match := PROCESS.search(line))}


def _find_exception(log: Sequence[str]) -> Diagnosis | None:
    lines = [line.strip() for line in log if EXCEPTION.match(find_message(line))]
    if not lines or not any("Traceback (most recent call last)" in line for line in log):
        return None
    return Diagnosis(
        kind="exit",
        words="it ended with an exception before it answered",
        cure="the reason is in the last lines of its log",
        evidence=tuple(lines[-EVIDENCE_LINES:]),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
