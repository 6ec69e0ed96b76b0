"""Collects what a running engine is: from its processes and packages, from its container, and from its API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from firesteel.config import hide_in_text, shown_environment
from firesteel.device import DeviceSpec
from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.engine_info import EngineInfo
from firesteel.lab.path.imports import ServerImports
from firesteel.lab.servers.commands import VLLM, VLLM_WITH_PLUGIN
from firesteel.lab.servers.target import Target

ANSWER_S = 10.0
# Engine -> path and field of its API that state a version.
STATEMENTS = {
    "firesteel": ("/version", "version"),
    VLLM: ("/version", "version"),
    VLLM_WITH_PLUGIN: ("/version", "version"),
    "sglang": ("/get_server_info", "version"),
    "llamacpp": ("/props", "build_info"),
}
PACKAGES = {VLLM_WITH_PLUGIN: VLLM}  # the package of an engine, unless it has the engine's name
BUILD = re.compile(r"(?P<version>b\d+)-(?P<commit>[0-9a-f]{7,40})")  # of llama.cpp


class Release(NamedTuple):
    version: str | None
    commit: str | None = None
    is_dirty: bool | None = None


def describe_engine(target: Target, *, name: str, device: DeviceSpec) -> EngineInfo:
    """Describes a server that is ready. Of one that was running already, only its API is asked."""
    imports = target.find_imports()
    info = EngineInfo(
        name=name,
        kind=target.kind,
        url=hide_in_text(target.api.url),
        model=target.api.model,
        max_context=target.max_context,
        device=device.name,
        interpreter=imports.interpreter or None,
        python=imports.python or None,
        packages=imports.distributions,
        modules={name: package for name, package in imports.packages.items() if package is not None},
        cuda=imports.cuda,
    )
    release = find_release(target, imports)
    info = replace(info, version=release.version, commit=release.commit, is_dirty=release.is_dirty)
    if target.server is None:
        return info
    environment = target.server.place.environment
    return replace(
        info,
        environment=shown_environment(environment),
        cudnn=find_library("cudnn", imports.distributions, environment),
        nccl=find_library("nccl", imports.distributions, environment),
    )


def find_release(target: Target, imports: ServerImports) -> Release:
    """Takes the package that is imported, or else what the API states."""
    package = imports.packages.get(PACKAGES.get(target.kind, target.kind))
    if package is not None:
        version = package.version or ask_version(target.api, target.kind)
        return Release(version, package.commit, package.is_dirty)
    stated = ask_version(target.api, target.kind)
    build = BUILD.fullmatch(stated or "")
    return Release(build["version"], build["commit"]) if build else Release(stated)


def ask_version(api: Api, kind: str) -> str | None:
    """Returns what the server's API states; None for an engine that is not known, or without that path."""
    if kind not in STATEMENTS:
        return None
    path, name = STATEMENTS[kind]
    try:
        answer = replace(api, timeout_s=ANSWER_S).get(path)
    except RequestFailed:
        return None
    version = answer.get(name) if isinstance(answer, dict) else None
    return version if isinstance(version, str) else None


def find_library(name: str, distributions: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """Returns the version of one of NVIDIA's libraries: of its wheel, which torch prefers, or of the image."""
    wheels = (version for wheel, version in distributions.items() if wheel.startswith(f"nvidia-{name}"))
    of_image = (environment.get(variable) for variable in (f"NV_{name.upper()}_VERSION", f"{name.upper()}_VERSION"))
    return next(wheels, None) or next(filter(None, of_image), None)
