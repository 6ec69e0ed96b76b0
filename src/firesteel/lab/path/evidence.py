"""The evidence of a kernel path: log, profile, ledger, environment, flags and versions, if known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firesteel.device import DeviceSpec
from firesteel.lab.path.ledger import OpCalls, ServerLedger
from firesteel.lab.path.ranks import list_rank_rows

CPU, GPU = "cpu", "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEvidence:
    log: Sequence[str] = ()
    kernels: Mapping[str, int] | None = None  # launches per kernel, from a profile
    ledger: ServerLedger | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # of the server's process
    commands: Sequence[str] = ()  # command lines of its processes
    versions: Mapping[str, str] = field(default_factory=dict)  # package -> version that the server imports
    machine: str = ""  # what the engine could have used: CPU, GPU or, if its machine is unknown, empty
    capability: tuple[int, int] | None = None

    @property
    def device(self) -> str:
        """The device that was used. A ledger states it; else it is the best of the machine."""
        if self.ledger is None:
            return self.machine
        return CPU if self.ledger.device == "CPU" else GPU

    def kernel_lines(self) -> list[str]:
        return [f"{name} ({count} launches)" for name, count in (self.kernels or {}).items()]

    def ledger_lines(self) -> list[str]:
        """Returns lines such as "linear=triton mxfp8 @fp8" and "sinks=on", also if they are our plugin's."""
        if self.ledger is None:
            return list_rank_rows(self.log)
        return [*(" ".join(filter(None, _words(calls))) for calls in self.ledger.ran), *self.ledger.settings()]

    def environment_lines(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.environment.items()]


def _words(calls: OpCalls) -> list[str]:
    proofs = [f"@{verdict}" for verdict in sorted(calls.verdicts)]
    return [f"{calls.op}={calls.implementation}", calls.activation, *proofs]


def describe_machine(device: DeviceSpec) -> tuple[str, tuple[int, int] | None]:
    """Returns the fields `machine` and `capability` of evidence from this device."""
    return (GPU if device.is_cuda else CPU), device.capability
