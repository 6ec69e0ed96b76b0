"""Why a server failed, in words, from its exit code, its log and the kernel's messages; starts nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

EVIDENCE_LINES = 5
QUOTED = 200  # characters of the last of them
STACKS = "stacks of its threads are at the end of its log if it is a Python program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    kind: str  # one of KINDS
    words: str  # what happened, for a person
    cure: str = ""
    evidence: tuple[str, ...] = ()  # lines that say so

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        said = f"it said: {self.evidence[-1][:QUOTED]!r}" if self.evidence else ""
        return "; ".join(part for part in (self.words, said, self.cure) if part)


@dataclass(frozen=True, slots=True)
class Sign:
    """A line of a log that names a cause."""

    kind: str
    pattern: re.Pattern[str]
    words: str
    cure: str


def _sign(kind: str, pattern: str, words: str, cure: str) -> Sign:
    return Sign(kind, re.compile(pattern, re.IGNORECASE), words, cure)


# The first that matches counts: causes stand before what follows from them.
SIGNS = (
    _sign(
        "illegal-memory-access",
        r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|misaligned address|unspecified launch failure",
        "a kernel touched memory that is not its own (illegal memory access)",
        "run again with --debug, which names the launch that failed",
    ),
    _sign(
        "gpu-out-of-memory",
        r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaMalloc failed: out of memory",
        "the GPU's memory ran out",
        "ask for less: a shorter context, fewer sequences or a smaller share of memory for the cache",
    ),
    _sign(
        "out-of-memory",
        r"\bMemoryError\b|Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: .*allocate",
        "the machine's memory ran out",
        "free memory, or ask for a smaller cache or model",
    ),
    _sign(
        "disk-full",
        r"No space left on device|\bENOSPC\b|Disk quota exceeded",
        "a disk that it writes to is full",
        "free space where it keeps its caches, its log and TMPDIR; in a container also /dev/shm (--shm-size)",
    ),
    _sign(
        "illegal-instruction",
        r"Illegal instruction|SIGILL",
        "one of its processes used an instruction that this CPU does not have",
        "use a build for this CPU, or keep it from that instruction set (ONEDNN_MAX_CPU_ISA, --dtype float32)",
    ),
    _sign(
        "fault",
        r"Fatal Python error: (Segmentation fault|Aborted|Bus error|Floating)|terminate called after throwing",
        "one of its processes crashed",
        "the stack is in its log",
    ),
    _sign(
        "port-in-use",
        r"address already in use|EADDRINUSE|port \d+ is already|Cannot assign requested address|bind.*failed",
        "its port is taken by another process",
        "choose another port, or stop what listens there",
    ),
    _sign(
        "import-error",
        r"(ModuleNotFound|Import)Error:|cannot open shared object file|undefined symbol:|No module named",
        "a package or library that it needs is missing or does not fit",
        "install it into the environment of the server's Python",
    ),
    _sign(
        "missing-model",
        r"no checkpoint|RepositoryNotFound|does not appear to have a file named|failed to load model|"
        r"is not a valid model identifier|is not a folder|"
        r"not in the local (Hugging Face )?cache|config\.json.*(not found|No such file)|"
        r"(No such file|not found).*(safetensors|gguf|config\.json)|neither a folder nor",
        "the model is not there",
        "check the name or path of the model",
    ),
)  # fmt: skip
KERNEL_SIGNS = (
    _sign(
        "out-of-memory", r"out of memory|oom-kill|Killed process",
        "the kernel killed it because the machine's memory ran out",
        "free memory, or ask for a smaller cache or model",
    ),
    _sign(
        "gpu-fault", r"\bXid\b", "the GPU's driver reported a fault (Xid)",
        "look up the Xid number in NVIDIA's list; 48, 63, 64, 79, 94 and 95 point to hardware",
    ),
)  # fmt: skip
KINDS = (
    *dict.fromkeys(sign.kind for sign in (*SIGNS, *KERNEL_SIGNS)),
    "not-found", "exit", "signal", "hang", "never-ready", "log-flood", "http-error", "garbage", "unreachable",
)  # fmt: skip


def diagnose_exit(
    code: int | None, log: Sequence[str], *, step: str, kernel: Sequence[str] = (), silent_s: float | None = None
) -> Diagnosis:
    """Of a server that ended with `code`, or, where that is None, that said nothing for `silent_s` at a step."""
    end = describe_end(code, step, silent_s)
    for signs, lines, of in ((KERNEL_SIGNS, kernel, "the kernel"), (SIGNS, log, "its log")):
        for sign in signs:
            evidence = tuple(line.strip() for line in lines if sign.pattern.search(line))
            if evidence:
                words = f"{sign.words}, says {of}; {end}"
                return Diagnosis(kind=sign.kind, words=words, cure=sign.cure, evidence=evidence[-EVIDENCE_LINES:])
    last = tuple(line.strip() for line in log if line.strip())[-EVIDENCE_LINES:]
    kind = "hang" if code is None else "signal" if code < 0 else "exit"
    return Diagnosis(kind=kind, words=end, cure=_cure(kind, code), evidence=last)


def describe_end(code: int | None, step: str, silent_s: float | None = None) -> str:
    if code is None:
        return f"it runs but hangs at {step}" + (f": no answer for {silent_s:.0f} s" if silent_s else "")
    if code < 0:
        return f"killed by signal {-code} ({name_signal(-code)}) at {step}"
    if code > 128 and code - 128 in {one.value for one in signal.Signals}:  # as a shell says it
        return f"killed by signal {code - 128} ({name_signal(code - 128)}) at {step}"
    return f"it ended by itself with exit code {code} at {step}"


def name_signal(number: int) -> str:
    return {one.value: one.name for one in signal.Signals}.get(number, "unknown")


def _cure(kind: str, code: int | None) -> str:
    if kind == "hang":
        return STACKS
    if code == -signal.SIGKILL:
        return "SIGKILL comes from outside; most often the kernel was short of memory"
    if kind == "signal":
        return "the stack of a Python program is at the end of its log"
    return "the last lines of its log say why"
