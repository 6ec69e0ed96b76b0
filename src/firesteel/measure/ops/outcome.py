"""Outcome of timing an op: figures against the ceilings of the same run, or the reason why there are none.

A share refers to the read ceiling or to the matrix rate, whichever the call is closer to: that one bounds it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from firesteel.config import Config
from firesteel.device import DeviceSpec
from firesteel.kernels.operands.shapes import SEED
from firesteel.measure.record import Record
from firesteel.measure.roofline.ceiling import Ceiling
from firesteel.measure.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    read: Ceiling
    matrix: Ceiling
    matrix_type: str

    def records(self, device: DeviceSpec, config: Config) -> list[Record]:
        return [
            Record.now(
                device,
                config,
                name=name,
                unit="s",
                samples=ceiling.timing.samples_s,
                warmups=ceiling.timing.warmups,
                parameters={"work": ceiling.work, "rate": ceiling.rate, "rate_unit": ceiling.unit},
            )
            for name, ceiling in (("read ceiling", self.read), (f"matrix rate {self.matrix_type}", self.matrix))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    timing: Timing
    bytes: float  # moved per call, mean over the rotation
    flops: float
    rotation_bytes: float  # read before the same memory is used again
    read_gb_s: float  # ceiling
    matrix_tflop_s: float  # ceiling
    peak_memory_bytes: int  # during timing, arguments included; on a CPU since the process started
    first_call_s: float = (
        0.0  # of the first call with these shapes: compiles, loads and chooses tiles, if it has to
    )
    plan_s: float | None = None  # of the host's part of a call, timed apart, if the implementation has one

    @property
    def median_s(self) -> float:
        return self.timing.median_s

    @property
    def gb_s(self) -> float:
        return self.bytes / self.median_s / 1e9

    @property
    def tflop_s(self) -> float:
        return self.flops / self.median_s / 1e12

    @property
    def share(self) -> float:
        return max(self.gb_s / self.read_gb_s, self.tflop_s / self.matrix_tflop_s)

    @property
    def bound(self) -> str:
        return "read" if self.gb_s / self.read_gb_s >= self.tflop_s / self.matrix_tflop_s else "matrix"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpOutcome:
    """Result of one implementation on one workload: figures, or the reason why there are none."""

    op: str
    part: str
    m: int
    implementation: str
    activation: str
    figures: Figures | None = None
    why: str = ""
    failed: bool = False  # true after a fault; otherwise the arguments were refused or need too much memory

    def as_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "op": self.op,
            "part": self.part,
            "m": self.m,
            "implementation": self.implementation,
            "activation": self.activation,
            "why": self.why,
            "failed": self.failed,
        }
        if (figures := self.figures) is not None:
            fields |= {
                "median_s": figures.median_s,
                "bytes": figures.bytes,
                "flops": figures.flops,
                "gb_s": figures.gb_s,
                "tflop_s": figures.tflop_s,
                "share": figures.share,
                "bound": figures.bound,
                "read_gb_s": figures.read_gb_s,
                "matrix_tflop_s": figures.matrix_tflop_s,
                "rotation_bytes": figures.rotation_bytes,
                "first_call_s": figures.first_call_s,
                "plan_s": figures.plan_s,
            }
        return fields

    @property
    def workload(self) -> tuple[str, str, int, str]:
        """Key that all implementations timed on the same workload share."""
        return self.op, self.part, self.m, self.activation

    def record(self, around: Record) -> Record:
        """Builds the record, with the settings and surroundings of another record of this run."""
        assert self.figures is not None
        timing = self.figures.timing
        known = {key: value for key, value in self.as_dict().items() if key not in ("why", "failed", "median_s")}
        return replace(
            around,
            name=f"op {self.op}",
            unit="s",
            samples=timing.samples_s,
            warmups=timing.warmups,
            seed=SEED,
            parameters={**known, "calls_a_sample": timing.calls},
            kernels={self.op: self.implementation},
            peak_memory_bytes=self.figures.peak_memory_bytes,
        )
