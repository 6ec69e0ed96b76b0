"""Checks that locks of torch bring a CUDA build and a Triton with native FP4, from metadata alone.

    python tools/cuda_locks.py requirements/spark.lock=aarch64 requirements/blackwell.lock=x86_64

Asks the package index through pip for the wheel of the named machine and reads what it requires; no wheel is
downloaded. If the index cannot be reached, the check is skipped with the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from arm64_wheels import OUT_OF_REACH, list_platforms
from lock_hashes import read_pins

OLDEST_TRITON = Version("3.8")  # older ones multiply MXFP4 as bf16 on SM12x
PYTHONS = ("3.11", "3.12")
Metadata = Mapping[str, Any]


class IndexUnreachable(Exception):
    """The package index cannot be asked."""


def read_metadata(requirement: str, machine: str, python: str) -> Metadata | str:
    """Returns the metadata of the wheel that pip would choose for a machine, or pip's error."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--quiet",
            "--no-deps",
            "--ignore-installed",
        ]
        command += ["--only-binary=:all:", *list_platforms(machine), "--python-version", python]
        command += ["--target", folder, "--report", str(report), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            metadata: Metadata = json.loads(report.read_text(encoding="utf-8"))["install"][0]["metadata"]
            return metadata
    if any(word in done.stderr for word in OUT_OF_REACH):
        raise IndexUnreachable(done.stderr.strip().splitlines()[-1])
    return done.stderr.strip() or f"pip exited with code {done.returncode}"


def find_cuda(torch: Metadata) -> str | None:
    """Returns the version of CUDA that a build of torch requires; None: a CPU build."""
    for requirement in map(Requirement, torch.get("requires_dist", ())):
        if requirement.name == "cuda-toolkit" or requirement.name.startswith("nvidia-cuda-runtime"):
            return str(requirement.specifier).removeprefix("==")
    return None


def judge(pins: Mapping[str, str], torch: Metadata) -> list[str]:
    """Returns what is wrong with a lock's versions and the metadata of its torch."""
    triton, complaints = pins.get("triton"), []
    if find_cuda(torch) is None:
        complaints.append(f"torch {pins['torch']} is a CPU build")
    if triton is None or Version(triton) < OLDEST_TRITON:
        complaints.append(f"Triton {triton or 'is not pinned: it'} must be {OLDEST_TRITON} or later")
    wanted = [
        requirement
        for requirement in map(Requirement, torch.get("requires_dist", ()))
        if requirement.name == "triton" and (triton is None or triton not in requirement.specifier)
    ]
    complaints += [f"torch {pins['torch']} requires {requirement}, not {triton}" for requirement in wanted]
    return complaints


def check(path: Path, machine: str, read: Callable[[str, str, str], Metadata | str] = read_metadata) -> list[str]:
    """Returns what is wrong with a lock on a machine, by Python version."""
    pins, complaints = dict(read_pins(path.read_text(encoding="utf-8"))), []
    for python in PYTHONS:
        answers = {name: read(f"{name}=={version}", machine, python) for name, version in pins.items()}
        missing = [f"no wheel of {name}: {answer}" for name, answer in answers.items() if isinstance(answer, str)]
        torch = answers["torch"]
        wrong = missing if isinstance(torch, str) else [*missing, *judge(pins, torch)]
        complaints += [f"Python {python}: {line}" for line in wrong]
        if not wrong and not isinstance(torch, str):
            print(f"{path.name}, {machine}, Python {python}: {pins}, CUDA {find_cuda(torch)}: ok", flush=True)
    return complaints


def main() -> int:
    failed = 0
    for argument in sys.argv[1:]:
        name, _, machine = argument.partition("=")
        try:
            complaints = check(Path(name), machine)
        except IndexUnreachable as error:
            print(f"locks of torch: skipped, the package index is out of reach ({error})")
            return 0
        for complaint in complaints:
            print(f"{name}, {machine}: {complaint}")
        failed += len(complaints)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
