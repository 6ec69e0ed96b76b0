"""Crash bundles of failed servers: log, kernel messages, GPU state, processes, environment.

`engine/process/crash.py` writes the folder and hides secrets.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from firesteel.config import HIDDEN, is_secret, told_environment
from firesteel.engine.process.crash import CrashReport, write_bundle
from firesteel.lab.servers.bystanders import Bystanders
from firesteel.lab.servers.diagnosis import Diagnosis

LOG_LINES = 400
TAIL_BYTES = 1 << 18
TIMEOUT_S = 15
KERNEL_WORDS = re.compile(
    r"\bXid\b|NVRM|oom-kill|out of memory|Killed process|segfault|general protection|traps:", re.IGNORECASE
)
NO_PROCESSES: Mapping[int, str] = MappingProxyType({})
KERNEL_LOGS = (("dmesg",), ("journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--lines=5000"))
KERNEL_CURE = (
    "to get the kernel's messages next time: sudo sysctl kernel.dmesg_restrict=0, or add this user to the group "
    "adm or systemd-journal"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashEvidence:
    """Everything that could be collected from a failed server."""

    command: Sequence[str]
    url: str
    diagnosis: Diagnosis
    log: Path
    environment: Mapping[str, str]
    processes: Sequence[Mapping[str, Any]]
    kernel_messages: Sequence[str]
    step: str
    nvidia_smi: str = ""  # before the server was stopped
    container: Mapping[str, Any] = field(default_factory=dict)  # its id, image, digest and state
    stopped: Mapping[str, Any] = field(default_factory=dict)
    ledger: Sequence[Mapping[str, Any]] = ()
    in_flight: Sequence[str] = ()


def write_crash_bundle(folder: Path, evidence: CrashEvidence) -> Path:
    """Creates a new folder within `folder` with report.json and log.txt."""
    diagnosis = evidence.diagnosis
    report = CrashReport(
        cause=diagnosis.in_words(),
        log_tail=read_tail(evidence.log),
        config={
            "command": list(evidence.command),
            "url": evidence.url,
            "log": str(evidence.log),
            "hidden_flags": find_secret_flags(evidence.command),
        },
        ledger=evidence.ledger,
        in_flight=evidence.in_flight,
        surroundings={
            "diagnosis": diagnosis.as_dict(),
            "step": evidence.step,
            "stopped": dict(evidence.stopped),
            "processes": list(evidence.processes),
            "kernel_messages": list(evidence.kernel_messages),
            "nvidia_smi": evidence.nvidia_smi,
            **({"container": dict(evidence.container)} if evidence.container else {}),
            "environment": told_environment(evidence.environment),
        },
    )
    return write_bundle(folder, report)


def find_secret_flags(words: Sequence[str]) -> dict[str, str]:
    """Returns secret flags and their values, which are hidden in command lines and logs."""
    parts = [part.strip("'\"") for word in words for part in word.split()]  # a word may itself be a command line
    secrets = {}
    for word, after in itertools.pairwise((*parts, "")):
        name, equals, value = word.partition("=")
        if is_secret(name) and (equals or name.startswith("-")):
            secrets[name] = value.strip("'\"") if equals else after
    return secrets


def hide_values(lines: Sequence[str], values: Collection[str]) -> list[str]:
    """Replaces the values wherever they appear."""
    if not (known := [re.escape(value) for value in sorted(values, key=len, reverse=True) if value]):
        return list(lines)
    return [re.sub("|".join(known), HIDDEN, line) for line in lines]


def read_tail(path: Path, num_lines: int = LOG_LINES, num_bytes: int = TAIL_BYTES) -> list[str]:
    """Returns the last lines of a log of any size, in any encoding."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - num_bytes))
            return file.read().decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        return []


class KernelLog:
    """Kernel messages about GPUs, memory and faults since this object was created, but not about other programs."""

    def __init__(self) -> None:
        self._before, _ = read_kernel_log()
        self._bystanders = Bystanders.now()

    def new_messages(self, ours: Mapping[int, str] = NO_PROCESSES) -> list[str]:
        """Returns nothing if the kernel's log cannot be read; `ours` are pids and names of the server."""
        return self._read(ours)[0]

    def messages_or_reason(self, ours: Mapping[int, str] = NO_PROCESSES) -> list[str]:
        """Returns the new messages, or why they cannot be read."""
        messages, reason = self._read(ours)
        return [reason] if reason else messages

    def _read(self, ours: Mapping[int, str]) -> tuple[list[str], str]:
        last = self._before[-1] if self._before else None
        now, reason = read_kernel_log()
        since = now[now.index(last) + 1 :] if last in now else now
        told = [line for line in since if KERNEL_WORDS.search(line)]
        return [line for line in told if not self._bystanders.are_meant(line, ours)], reason


def read_kernel_log() -> tuple[list[str], str]:
    """Returns its lines, or why they cannot be read and the cure: many systems restrict dmesg to root."""
    reasons = []
    for command in KERNEL_LOGS:
        text, reason = _run(*command)
        if not reason and (text or command[0] == "dmesg"):  # journalctl without permission shows nothing
            return text.splitlines(), ""
        reasons.append(reason or f"{command[0]} shows nothing")
    return [], f"not readable: {'; '.join(reasons)}; {KERNEL_CURE}"


def ask_nvidia_smi() -> str:
    """Returns its output, also if it fails, as for a GPU that is lost."""
    text, reason = _run("nvidia-smi")
    return f"{text}\n{reason}".strip()


def _run(*command: str) -> tuple[str, str]:
    """Returns the output, and the reason of a failure."""
    if shutil.which(command[0]) is None:
        return "", f"{command[0]} is not installed"
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} did not finish in {TIMEOUT_S} s"
    words = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
    return done.stdout.decode(errors="replace"), f"{command[0]} failed: {words}" if done.returncode else ""
