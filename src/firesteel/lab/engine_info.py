"""The engine under test: what it is, what it was built and started from, and where it ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firesteel.lab.codec import to_json
from firesteel.lab.path.imports import ImportedPackage
from firesteel.surroundings import Figure

SERVER_FIELDS = ("command", "startup_s", "log", "peak_bytes", "gpu_scope")
SHORT = 9  # characters of a commit in words


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Fields that could not be learnt keep their defaults: a server behind --url states little about itself."""

    name: str = ""
    kind: str | None = None  # whose rules apply
    url: str | None = None
    model: str | None = None
    max_context: int | None = None
    device: str | None = None
    version: str | None = None
    commit: str | None = None  # of the engine's sources, from its checkout or its build
    is_dirty: bool | None = None  # its sources differ from that commit
    # Known if the lab started the server.
    interpreter: str | None = None
    python: str | None = None  # version of the interpreter
    packages: Mapping[str, str] = field(default_factory=dict)  # every distribution -> version
    # The packages that matter, such as vllm and flashinfer: file, version, commit.
    modules: Mapping[str, ImportedPackage] = field(default_factory=dict)
    cuda: str | None = None  # that its torch was built for
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None
    clocks_mhz: Mapping[str, Figure] | None = None  # after the levels, before the server was stopped
    environment: Mapping[str, str] = field(default_factory=dict)  # of its process, secrets hidden
    image: str | None = None  # of its container, as it was named
    digest: str | None = None  # of the image: by its registry, else that of its configuration
    container: str | None = None  # its id
    command: tuple[str, ...] | None = None
    startup_s: float | None = None
    log: str | None = None
    peak_bytes: int | None = None
    gpu_scope: str | None = None

    @property
    def release(self) -> str:
        """The engine with version and commit, such as "vllm 0.32.0 (1a2b3c4d5, dirty)"; empty if unknown."""
        state = [*([self.commit[:SHORT]] if self.commit else []), *(["dirty"] if self.is_dirty else [])]
        known = [word for word in (self.version, f"({', '.join(state)})" if state else "") if word]
        return " ".join([self.kind or self.name, *known]) if known else ""

    def as_dict(self) -> dict[str, Any]:
        """Leaves out what is unknown, except for fields of a server that the lab started."""
        kept = () if self.command is None else SERVER_FIELDS
        content: dict[str, Any] = to_json(self)
        return {name: value for name, value in content.items() if value not in (None, "", {}) or name in kept}
