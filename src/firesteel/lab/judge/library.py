"""Judges whether a compiled library has machine code for a GPU."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from firesteel.errors import UserError
from firesteel.kernels.proof.library import LibraryTargets, list_targets
from firesteel.lab.judge.evidence_file import EvidenceFile, holds_device_code
from firesteel.lab.servers.known_errors import BUILD_CURE
from firesteel.lab.verdict import Verdict

TARGET = re.compile(r"sm_(\d+)(\d)([af]?)$")
FIRST_WITH_FP4 = (10, 0)
GPU_CURE = "name the GPU with --gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryVerdict:
    file: str
    machine_code: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    verdict: Verdict = Verdict.UNPROVEN
    words: str = ""
    cure: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict.value}


def judge_library(file: EvidenceFile, capability: tuple[int, int] | None) -> LibraryVerdict | None:
    """Returns None for a library of a folder that holds nothing for a GPU."""
    try:
        code = list_targets(file.path) if holds_device_code(file.path) else LibraryTargets()
    except UserError as error:
        return LibraryVerdict(file=str(file.path), words=str(error), cure="build or download it again")
    if not code.machine_code and not code.ptx:
        if not file.is_named:
            return None
        return LibraryVerdict(file=str(file.path), words="holds no code for a GPU", cure="name another library")
    verdict, words, cure = judge_code(code, capability, is_named=file.is_named)
    return LibraryVerdict(
        file=str(file.path), machine_code=code.machine_code, ptx=code.ptx, verdict=verdict, words=words, cure=cure
    )


def judge_code(
    code: LibraryTargets, capability: tuple[int, int] | None, *, is_named: bool
) -> tuple[Verdict, str, str]:
    """Returns verdict, words and cure. `is_named`: the user asks about this library, not about a whole folder."""
    listed = ", ".join(code.machine_code) or "no machine code"
    if capability is None:
        return Verdict.UNPROVEN, f"{listed}; the GPU is not known", GPU_CURE
    gpu = f"{capability[0]}.{capability[1]}"
    fitting = [target for target in code.machine_code if can_run(target, capability)]
    if fitting:
        words = f"has machine code for {gpu}: {', '.join(fitting)}"
        if capability >= FIRST_WITH_FP4 and all(target[-1].isdigit() for target in fitting):
            words += "; without the suffix a or f it holds no block-scaled FP4 instruction"
        return Verdict.PASSED, words, ""
    if not is_named and not code.ptx and all(target[-1] == "a" for target in code.machine_code):
        return Verdict.NOT_APPLICABLE, f"kernels for other GPUs only: {listed}", ""
    if compiled := [target for target in code.ptx if can_compile(target, capability)]:
        words = (
            f"no machine code for {gpu}, only {listed}: the driver compiles its PTX ({', '.join(compiled)}) "
            "at the first launch, without FP4 instructions, and wrong results are known (vLLM pull request 40923)"
        )
        return Verdict.FAILED, words, BUILD_CURE
    return Verdict.FAILED, f"no machine code for {gpu}, only {listed}: its kernels cannot run there", BUILD_CURE


def can_run(target: str, capability: tuple[int, int]) -> bool:
    """Returns whether machine code runs: on later minors, with the suffix `a` on this GPU only."""
    major, minor, suffix = _parse(target)
    return (major, minor) == capability if suffix == "a" else major == capability[0] and minor <= capability[1]


def can_compile(target: str, capability: tuple[int, int]) -> bool:
    """Returns whether the driver compiles this PTX: for all later GPUs, with a suffix as for machine code."""
    major, minor, suffix = _parse(target)
    return can_run(target, capability) if suffix else (major, minor) <= capability


def _parse(target: str) -> tuple[int, int, str]:
    match = TARGET.match(target)
    return (0, 0, "a") if match is None else (int(match[1]), int(match[2]), match[3])
