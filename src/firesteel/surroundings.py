"""Surroundings of a measurement: GPU state, versions, source revision, environment and command.

Unavailable values are None: no nvidia-smi, no checkout, or a field that the driver lacks (GB10 lacks several).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from firesteel.config import hide_secrets, shown_environment
from firesteel.device import DeviceSpec

PACKAGE = Path(__file__).parent
PATIENCE_S = 20  # for nvidia-smi and git
CLOCKS = {"sm": "clocks.sm", "memory": "clocks.mem", "max_sm": "clocks.max.sm", "max_memory": "clocks.max.mem"}
POWER = {
    "limit_w": "power.limit",
    "draw_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "performance_state": "pstate",
    "persistence": "persistence_mode",
}
Figure = float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    driver: str | None = None
    clocks_mhz: dict[str, Figure] | None = None
    power: dict[str, Figure] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    device: str
    capability: str | None  # "9.0"; None on a CPU
    gpu: GpuState
    versions: dict[str, str | None]
    packages_hash: str  # hash of every installed package with its version
    commit: str | None  # revision of firesteel's source
    is_dirty: bool | None  # the package differs from that commit
    environment: dict[str, str]
    command: tuple[str, ...]
    time_utc: str


def look_around(device: DeviceSpec) -> Surroundings:
    commit, is_dirty = find_commit(PACKAGE)
    return Surroundings(
        device=device.name,
        capability=None if device.capability is None else "{}.{}".format(*device.capability),
        gpu=ask_gpu(device),
        versions={
            "python": platform.python_version(),
            **{name: installed(name) for name in ("torch", "triton", "firesteel")},
            "cuda": torch.version.cuda,
        },
        packages_hash=hash_packages(),
        commit=commit,
        is_dirty=is_dirty,
        environment=shown_environment(),
        command=shown_command(sys.argv),
        time_utc=_now(),
    )


def look_again(around: Surroundings, device: DeviceSpec) -> Surroundings:
    """Returns `around` with the current GPU state and time; the rest does not change while a program runs."""
    return replace(around, gpu=ask_gpu(device), time_utc=_now())


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ask_gpu(device: DeviceSpec) -> GpuState:
    """Asks nvidia-smi for the GPU's state by UUID, since its numbering ignores CUDA_VISIBLE_DEVICES."""
    if not device.is_cuda:
        return GpuState()
    uuid = torch.cuda.get_device_properties(device.torch_device).uuid
    fields = ["driver_version", *CLOCKS.values(), *POWER.values()]
    answer = _run(
        "nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"
    )
    return GpuState() if answer is None else parse_gpu(answer)


def parse_gpu(answer: str) -> GpuState:
    figures = [_figure(word.strip()) for word in answer.strip().split(",")]
    if len(figures) != 1 + len(CLOCKS) + len(POWER):
        return GpuState()
    clocks, power = figures[1 : 1 + len(CLOCKS)], figures[1 + len(CLOCKS) :]
    return GpuState(
        driver=answer.split(",")[0].strip(),
        clocks_mhz=dict(zip(CLOCKS, clocks, strict=True)),
        power=dict(zip(POWER, power, strict=True)),
    )


def find_commit(folder: Path, run: Callable[..., str | None] | None = None) -> tuple[str | None, bool | None]:
    """Returns commit and dirty flag; None unless git tracks the folder: a package may lie in another checkout.

    `run` runs git elsewhere, such as in a container.
    """
    git, run = ("git", "--no-optional-locks", "-C", str(folder)), run or _run
    if run(*git, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    commit, changes = run(*git, "rev-parse", "HEAD"), run(*git, "status", "--porcelain", "--", ".")
    return (None if commit is None else commit.strip()), (None if changes is None else bool(changes))


def hash_packages() -> str:
    packages = {f"{package.name.lower()}=={package.version}" for package in importlib.metadata.distributions()}
    return hashlib.sha256("\n".join(sorted(packages)).encode()).hexdigest()


def shown_command(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the program's name and its arguments, with secrets hidden."""
    return (*map(_program, words[:1]), *hide_secrets(words[1:]))


def _program(path: str) -> str:
    """Returns the program without its folder; `python -m firesteel` is firesteel too."""
    return Path(path).parent.name if Path(path).name == "__main__.py" else Path(path).name


def peak_memory_bytes(device: DeviceSpec) -> int:
    """Returns the peak memory since the start: of torch on a GPU, of the process on a CPU."""
    if device.is_cuda:
        return torch.cuda.max_memory_allocated(device.torch_device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _figure(word: str) -> Figure:
    """Parses a number or word; None for [N/A] and [Not Supported]."""
    if word.startswith("["):
        return None
    try:
        return float(word)
    except ValueError:
        return word


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _run(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
