"""The ledger of a firesteel server (GET /ledger): which implementations ran, with which machine code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firesteel.kernels.op.requirement import VERDICTS
from firesteel.lab.codec import from_json

NONE = "none"  # verdict of machine code without matrix instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedCode:
    """A compiled kernel that was launched."""

    kernel: str = ""
    tile: str = ""
    artefact: str = ""  # hash of the code
    launches: int = 0
    verdict: str | None = None  # its matrix instructions; None until the server has read the code


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCalls:
    """The calls of one implementation of an op. Older servers have fewer fields."""

    op: str
    implementation: str = ""
    activation: str = ""  # bf16, mxfp8 or mxfp4, of ops that can round activations
    calls: int | None = None
    seconds: float | None = None
    launches: dict[str, int] = field(default_factory=dict)  # by kernel
    clipped: int | None = None
    artefacts: tuple[LaunchedCode, ...] = ()

    @property
    def verdicts(self) -> set[str]:
        """The kinds of matrix instructions in its machine code."""
        return {code.verdict for code in self.artefacts if code.verdict in VERDICTS and code.verdict != NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedDrafts:
    """Drafts that the server's engine has verified since its start."""

    kind: str = ""
    drafts: int = 0  # times that drafts of a request were verified
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()  # drafts accepted at least up to each position

    def in_words(self) -> str:
        if not self.draft_tokens:
            return f"{self.kind}, nothing drafted"
        return f"{self.kind}, {self.accepted_tokens} of {self.draft_tokens} drafted tokens accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLedger:
    device: str = ""
    kernels: dict[str, str] = field(default_factory=dict)  # op -> implementations that may run
    formats: dict[str, str] = field(default_factory=dict)  # of weights, activations and KV cache
    ran: tuple[OpCalls, ...] = ()
    sinks: bool | None = None  # None: an older server, which does not say
    graphs: int | None = None  # decoding steps that were captured
    drafts: VerifiedDrafts | None = None  # None: the server drafts nothing, or is older

    def settings(self) -> list[str]:
        """Returns lines about what is not an op: sinks, graphs, drafts and the type of the cache."""
        lines = [] if self.sinks is None else [f"sinks={'on' if self.sinks else 'off'}"]
        if self.graphs is not None:
            lines.append(f"graphs={'on' if self.graphs else 'off'}, {self.graphs} decoding steps captured")
        lines += [] if self.drafts is None else [f"drafts={self.drafts.in_words()}"]
        return lines + ([f"kv={self.formats['kv']}"] if "kv" in self.formats else [])

    @property
    def machine_code(self) -> list[LaunchedCode]:
        return [code for line in self.ran for code in line.artefacts]

    @property
    def num_unread(self) -> int:
        """Compiled kernels whose code the server has not read yet."""
        return sum(code.verdict is None for code in self.machine_code)

    @property
    def is_float32(self) -> bool:
        """True if the model is computed in float32: on a CPU that rounds neither activations nor the KV cache."""
        plain = {"activation": "bf16", "prefill_activation": "bf16", "kv": "float32"}
        is_plain = all(self.formats.get(name, value) == value for name, value in plain.items())
        return self.device == "CPU" and is_plain


def parse_ledger(content: Any) -> ServerLedger | None:
    """Returns None if the answer is not a ledger: another engine may answer /ledger in its own way."""
    if not isinstance(content, Mapping) or not isinstance(content.get("ran"), list):
        return None
    return from_json(ServerLedger, content, "the ledger")
