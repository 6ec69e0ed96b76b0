"""Collects what a failed server leaves: log, kernel messages, GPU, processes, environment; judges nothing.

The folder is written by `engine/process/crash.py`, which hides secrets.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firesteel.config import HIDDEN, is_secret, told_environment
from firesteel.engine.process.crash import CrashReport, write_bundle
from firesteel.lab.servers.diagnosis import Diagnosis

LOG_LINES = 400
TAIL_BYTES = 1 << 18
PATIENCE_S = 15
KERNEL_WORDS = re.compile(
    r"\bXid\b|NVRM|oom-kill|out of memory|Killed process|segfault|general protection|traps:", re.IGNORECASE
)
KERNEL_LOGS = (("dmesg",), ("journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--lines=5000"))
KERNEL_CURE = (
    "to have the kernel's messages next time: sudo sysctl kernel.dmesg_restrict=0, or make this user a member of "
    "the group adm or systemd-journal"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Of a server, as far as they could be gathered."""

    command: Sequence[str]
    url: str
    diagnosis: Diagnosis
    log: Path
    environment: Mapping[str, str]
    processes: Sequence[Mapping[str, Any]]
    kernel_messages: Sequence[str]
    step: str
    nvidia_smi: str = ""  # while it ran
    stopped: Mapping[str, Any] = field(default_factory=dict)
    ledger: Sequence[Mapping[str, Any]] = ()
    in_flight: Sequence[str] = ()


def bundle_up(folder: Path, remains: Remains) -> Path:
    """A new folder within `folder` with report.json and log.txt."""
    diagnosis = remains.diagnosis
    report = CrashReport(
        cause=diagnosis.in_words(), log_tail=read_tail(remains.log),
        config={"command": list(remains.command), "url": remains.url, "log": str(remains.log),
                "hidden_flags": find_secret_flags(remains.command)},
        ledger=remains.ledger, in_flight=remains.in_flight,
        surroundings={
            "diagnosis": diagnosis.as_dict(), "step": remains.step, "stopped": dict(remains.stopped),
            "processes": list(remains.processes), "kernel_messages": list(remains.kernel_messages),
            "nvidia_smi": remains.nvidia_smi, "environment": told_environment(remains.environment),
        },
    )  # fmt: skip
    return write_bundle(folder, report)


def find_secret_flags(words: Sequence[str]) -> dict[str, str]:
    """By name, so that the writer of the bundle knows what to hide in command lines and logs."""
    parts = [part.strip("'\"") for word in words for part in word.split()]  # a word may be a command line itself
    found = {}
    for word, after in itertools.pairwise((*parts, "")):
        name, equals, value = word.partition("=")
        if is_secret(name) and (equals or name.startswith("-")):
            found[name] = value.strip("'\"") if equals else after
    return found


def hide_values(lines: Sequence[str], values: Collection[str]) -> list[str]:
    """Wherever one of them shows up."""
    if not (known := [re.escape(one) for one in sorted(values, key=len, reverse=True) if one]):
        return list(lines)
    return [re.sub("|".join(known), HIDDEN, line) for line in lines]


def read_tail(path: Path, num_lines: int = LOG_LINES, num_bytes: int = TAIL_BYTES) -> list[str]:
    """The last lines of a log of any size, in any encoding."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - num_bytes))
            return file.read().decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        return []


class KernelWatch:
    """Messages of the kernel since this was made, those that speak of GPUs, memory and faults."""

    def __init__(self) -> None:
        self._before, _ = read_kernel_log()

    def news(self) -> list[str]:
        """Nothing where the kernel's log may not be read."""
        return self._look()[0]

    def told(self) -> list[str]:
        """The same, or why they cannot be had."""
        news, fault = self._look()
        return [fault] if fault else news

    def _look(self) -> tuple[list[str], str]:
        last = self._before[-1] if self._before else None
        now, fault = read_kernel_log()
        since = now[now.index(last) + 1 :] if last in now else now
        return [line for line in since if KERNEL_WORDS.search(line)], fault


def read_kernel_log() -> tuple[list[str], str]:
    """Its lines, or why none can be read and what helps: many systems keep dmesg to root."""
    faults = []
    for command in KERNEL_LOGS:
        text, fault = _run(*command)
        if not fault and (text or command[0] == "dmesg"):  # journalctl shows nothing where it may not
            return text.splitlines(), ""
        faults.append(fault or f"{command[0]} shows nothing")
    return [], f"not readable: {'; '.join(faults)}; {KERNEL_CURE}"


def ask_nvidia_smi() -> str:
    """What it says, also where it fails: a GPU that is lost."""
    text, fault = _run("nvidia-smi")
    return f"{text}\n{fault}".strip()


def _run(*command: str) -> tuple[str, str]:
    """What it wrote, and in words why it failed."""
    if shutil.which(command[0]) is None:
        return "", f"there is no {command[0]}"
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} did not answer in {PATIENCE_S} s"
    words = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
    return done.stdout.decode(errors="replace"), f"{command[0]} failed: {words}" if done.returncode else ""
