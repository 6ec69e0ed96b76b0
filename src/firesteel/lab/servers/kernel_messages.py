"""Messages of the kernel about processes and GPUs: whose they are, and what they say of a server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OUT_OF_MEMORY, GPU_FAULT = "out-of-memory", "gpu-fault"
# pid and name of the process that a line is about; the name is cut to 15 characters.
VICTIMS = (
    re.compile(r"Killed process (?P<pid>\d+)(?: \((?P<name>[^)]*)\))?"),
    re.compile(r"oom-kill:.*\btask=(?P<name>[^,]*),pid=(?P<pid>\d+)"),
    re.compile(r"oom_reaper: reaped process (?P<pid>\d+)(?: \((?P<name>[^)]*)\))?"),
)
FAULT = re.compile(r"\bXid\b.*?\bpid='?(?P<pid>\d+)(?:.*?\bname=(?P<name>[^,]+))?")
XID = re.compile(r"\bXid\b[^:]*(?:\([^)]*\))?: (?P<number>\d+)")
# Xid numbers of the GPU itself: they hit every process, whichever is named.
HARDWARE = {48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143, 154}
XID_WORDS = {
    13: "an instruction of a kernel failed",
    31: "a kernel accessed memory that is not mapped",
    43: "a process's work was stopped",
    45: "a process was killed while it used the GPU",
    48: "memory of the GPU has an error that cannot be corrected",
    62: "a controller of the GPU halted",
    63: "a row of its memory was replaced",
    64: "a row of its memory could not be replaced",
    74: "NVLink failed",
    79: "the GPU has fallen off the bus",
    94: "a memory error was contained",
    95: "a memory error was not contained",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
}
# Without any known process, a name decides.
ENGINE_NAME = re.compile(r"python[\d.]*|pt_main_thread|VLLM|vllm|sglang|llama-|firesteel|ray::", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCause:
    kind: str
    words: str
    cure: str
    lines: tuple[str, ...]


def find_kernel_cause(lines: Sequence[str], processes: Mapping[int, str]) -> KernelCause | None:
    """Returns what the kernel says happened to these processes, by pid, or to the GPU; None if nothing.

    If no process is known, one that is named like an engine's counts.
    """
    killed = tuple(line.strip() for line in lines if concerns(line, processes, VICTIMS))
    if killed:
        return _explain_kill(killed)
    faults = tuple(line.strip() for line in lines if XID.search(line) and _is_ours(line, processes))
    return _explain_xid(faults) if faults else None


def _is_ours(line: str, processes: Mapping[int, str]) -> bool:
    """Returns True if a fault hit one of these processes, no process that is named, or the GPU itself."""
    xid = XID.search(line)
    is_shared = xid is not None and int(xid["number"]) in HARDWARE
    return is_shared or FAULT.search(line) is None or concerns(line, processes, (FAULT,))


def concerns(line: str, processes: Mapping[int, str], patterns: Sequence[re.Pattern[str]]) -> bool:
    for pattern in patterns:
        match = pattern.search(line)
        if match is None:
            continue
        if processes:
            return int(match["pid"]) in processes
        return bool(ENGINE_NAME.match(match["name"] or ""))
    return False


def _explain_kill(lines: tuple[str, ...]) -> KernelCause:
    in_container = any("Memory cgroup" in line or "CONSTRAINT_MEMCG" in line for line in lines)
    where, cure = ("the machine's memory ran out", "free memory, or use a smaller cache or model")
    if in_container:
        where, cure = ("its container's memory limit was reached", "raise that limit (docker run --memory)")
    return KernelCause(kind=OUT_OF_MEMORY, words=f"the kernel killed it because {where}", cure=cure, lines=lines)


def _explain_xid(lines: tuple[str, ...]) -> KernelCause:
    numbers = sorted({int(match["number"]) for line in lines if (match := XID.search(line))})
    said = ", ".join(f"{number}{_meaning(number)}" for number in numbers)
    cure = "look up the Xid number in NVIDIA's list"
    if HARDWARE & set(numbers):
        cure += "; this one points to hardware: reset the GPU or restart the machine, and watch whether it returns"
    else:
        cure += "; run again with --debug, which names the launch that failed"
    return KernelCause(
        kind=GPU_FAULT, words=f"the GPU's driver reported a fault (Xid {said})", cure=cure, lines=lines
    )


def _meaning(number: int) -> str:
    return f": {XID_WORDS[number]}" if number in XID_WORDS else ""
