"""Diagnoses a failed server from its exit code, its log and the kernel's messages."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from firesteel.lab.servers.kernel_messages import GPU_FAULT, OUT_OF_MEMORY, find_kernel_cause
from firesteel.lab.servers.known_errors import LOG_PATTERNS

NO_PROCESSES: Mapping[int, str] = MappingProxyType({})
EVIDENCE_LINES = 5
QUOTED = 200  # characters of the last evidence line
STACKS = "if it is a Python program, the stacks of its threads are at the end of its log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    kind: str  # one of KINDS
    words: str  # what happened
    cure: str = ""
    evidence: tuple[str, ...] = ()  # lines of the log or of the kernel

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        said = f"last line: {self.evidence[-1][:QUOTED]!r}" if self.evidence else ""
        return "; ".join(part for part in (self.words, said, self.cure) if part)


KINDS = (
    *dict.fromkeys((*(known.kind for known in LOG_PATTERNS), OUT_OF_MEMORY, GPU_FAULT)),
    "not-found",
    "container",
    "exit",
    "signal",
    "hang",
    "never-ready",
    "log-flood",
    "http-error",
    "garbage",
    "unreachable",
)


def diagnose_exit(
    code: int | None,
    log: Sequence[str],
    *,
    step: str,
    kernel: Sequence[str] = (),
    silent_s: float | None = None,
    processes: Mapping[int, str] = NO_PROCESSES,
) -> Diagnosis:
    """Diagnoses a server that exited with `code` or, if that is None, did not answer for `silent_s`.

    `processes` are the names of its processes by pid: only what the kernel did to those counts.
    """
    end = describe_end(code, step, silent_s)
    for diagnosis, source in ((diagnose_kernel(kernel, processes), "the kernel"), (diagnose_log(log), "its log")):
        if diagnosis is not None:
            return replace(diagnosis, words=f"{diagnosis.words}, according to {source}; {end}")
    last = tuple(line.strip() for line in log if line.strip())[-EVIDENCE_LINES:]
    kind = "hang" if code is None else "signal" if code < 0 else "exit"
    return Diagnosis(kind=kind, words=end, cure=_cure(kind, code), evidence=last)


def diagnose_kernel(lines: Sequence[str], processes: Mapping[int, str] = NO_PROCESSES) -> Diagnosis | None:
    """Returns what the kernel's messages say of a server, None if nothing."""
    cause = find_kernel_cause(lines, processes)
    if cause is None:
        return None
    return Diagnosis(kind=cause.kind, words=cause.words, cure=cause.cure, evidence=cause.lines[-EVIDENCE_LINES:])


def diagnose_log(log: Sequence[str]) -> Diagnosis | None:
    """Returns the first known error that a log shows, None if it shows none."""
    for known in LOG_PATTERNS:
        if numbers := known.find_lines(log):
            evidence = tuple(log[number].strip() for number in numbers)
            return Diagnosis(
                kind=known.kind, words=known.words, cure=known.cure, evidence=evidence[-EVIDENCE_LINES:]
            )
    return None


def describe_end(code: int | None, step: str, silent_s: float | None = None) -> str:
    if code is None:
        return f"it is running but hangs at {step}" + (f": no answer for {silent_s:.0f} s" if silent_s else "")
    if code < 0:
        return f"killed by signal {-code} ({name_signal(-code)}) at {step}"
    if code > 128 and code - 128 in {known.value for known in signal.Signals}:  # as a shell reports it
        return f"killed by signal {code - 128} ({name_signal(code - 128)}) at {step}"
    return f"it exited with code {code} at {step}"


def name_signal(number: int) -> str:
    return {known.value: known.name for known in signal.Signals}.get(number, "unknown")


def _cure(kind: str, code: int | None) -> str:
    if kind == "hang":
        return STACKS
    if code == -signal.SIGKILL:
        return "SIGKILL comes from outside the process; the usual cause is that memory ran out"
    if kind == "signal":
        return "if it is a Python program, its stack is at the end of its log"
    return "the reason is in the last lines of its log"
