"""Diagnoses a failed server from its exit code, its log and the kernel's messages."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class LogPattern:
    """A pattern of log lines that names a cause."""

    kind: str
    pattern: re.Pattern[str]
    words: str
    cure: str


def _pattern(kind: str, pattern: str, words: str, cure: str) -> LogPattern:
    return LogPattern(kind, re.compile(pattern, re.IGNORECASE), words, cure)


# The first match counts: causes come before their consequences.
LOG_PATTERNS = (
    _pattern(
        "illegal-memory-access",
        r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|misaligned address|unspecified launch failure",
        "a kernel accessed memory outside its allocations (illegal memory access)",
        "run again with --debug, which names the launch that failed",
    ),
    _pattern(
        "gpu-out-of-memory",
        r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaMalloc failed: out of memory",
        "the GPU's memory ran out",
        "use a shorter context, fewer sequences or a smaller share of memory for the cache",
    ),
    _pattern(
        "out-of-memory",
        r"\bMemoryError\b|Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: .*allocate",
        "the machine's memory ran out",
        "free memory, or use a smaller cache or model",
    ),
    _pattern(
        "disk-full",
        r"No space left on device|\bENOSPC\b|Disk quota exceeded",
        "a disk that the server writes to is full",
        "free space for its caches, its log and TMPDIR; in a container also /dev/shm (--shm-size)",
    ),
    _pattern(
        "illegal-instruction",
        r"Illegal instruction|SIGILL",
        "one of its processes used an instruction that this CPU lacks",
        "use a build for this CPU, or disable that instruction set (ONEDNN_MAX_CPU_ISA, --dtype float32)",
    ),
    _pattern(
        "fault",
        r"Fatal Python error: (Segmentation fault|Aborted|Bus error|Floating)|terminate called after throwing",
        "one of its processes crashed",
        "the stack is in its log",
    ),
    _pattern(
        "port-in-use",
        r"address already in use|EADDRINUSE|port \d+ is already|Cannot assign requested address|bind.*failed",
        "its port is taken by another process",
        "choose another port, or stop what listens there",
    ),
    _pattern(
        "import-error",
        r"(ModuleNotFound|Import)Error:|cannot open shared object file|undefined symbol:|No module named",
        "a package or library is missing or incompatible",
        "install it into the environment of the server's Python",
    ),
    _pattern(
        "missing-model",
        r"no checkpoint|RepositoryNotFound|does not appear to have a file named|failed to load model|"
        r"is not a valid model identifier|is not a folder|"
        r"not in the local (Hugging Face )?cache|config\.json.*(not found|No such file)|"
        r"(No such file|not found).*(safetensors|gguf|config\.json)|neither a folder nor",
        "the model was not found",
        "check the name or path of the model",
    ),
)
KERNEL_PATTERNS = (
    _pattern(
        "out-of-memory",
        r"out of memory|oom-kill|Killed process",
        "the kernel killed it because the machine's memory ran out",
        "free memory, or use a smaller cache or model",
    ),
    _pattern(
        "gpu-fault",
        r"\bXid\b",
        "the GPU's driver reported a fault (Xid)",
        "look up the Xid number in NVIDIA's list; 48, 63, 64, 79, 94 and 95 point to hardware",
    ),
)
KINDS = (
    *dict.fromkeys(pattern.kind for pattern in (*LOG_PATTERNS, *KERNEL_PATTERNS)),
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
    code: int | None, log: Sequence[str], *, step: str, kernel: Sequence[str] = (), silent_s: float | None = None
) -> Diagnosis:
    """Diagnoses a server that exited with `code` or, if that is None, did not answer for `silent_s`."""
    end = describe_end(code, step, silent_s)
    for patterns, lines, source in ((KERNEL_PATTERNS, kernel, "the kernel"), (LOG_PATTERNS, log, "its log")):
        for known in patterns:
            evidence = tuple(line.strip() for line in lines if known.pattern.search(line))
            if evidence:
                words = f"{known.words}, according to {source}; {end}"
                return Diagnosis(kind=known.kind, words=words, cure=known.cure, evidence=evidence[-EVIDENCE_LINES:])
    last = tuple(line.strip() for line in log if line.strip())[-EVIDENCE_LINES:]
    kind = "hang" if code is None else "signal" if code < 0 else "exit"
    return Diagnosis(kind=kind, words=end, cure=_cure(kind, code), evidence=last)


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
