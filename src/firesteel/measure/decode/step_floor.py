"""What every measured step has: the bytes it must read, at the ceiling of the same run; measures nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firesteel.measure.roofline.roofline import StepCost
from firesteel.types import KvCache


def kv_format(cache: KvCache) -> str:
    """As the floor counts it: a CPU's wide pages as a GPU's."""
    return "fp8" if cache.keys[0].element_size() == 1 else "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFloor:
    """The floor is the time that reading a step's bytes takes at the ceiling."""

    cost: StepCost
    read_gb_s: float  # the ceiling, measured in the same run

    @property
    def step_ms(self) -> float:
        """That a step took."""
        raise NotImplementedError

    @property
    def batch(self) -> int:
        return self.cost.step.requests

    @property
    def token_bytes(self) -> float:
        return self.cost.bytes / self.batch

    @property
    def floor_ms(self) -> float:
        return 1e3 * self.cost.seconds(self.read_gb_s)

    @property
    def floor_tok_s(self) -> float:
        return self.cost.tok_s(self.read_gb_s)

    @property
    def share(self) -> float:
        """Of the floor's speed that was reached."""
        return self.floor_ms / self.step_ms

    def floor_as_dict(self) -> dict[str, Any]:
        return {
            "ms_a_step": self.step_ms, "ms_a_token": self.step_ms / self.batch, "bytes_a_step": self.cost.bytes,
            "bytes_a_token": self.token_bytes, "read_gb_s": self.read_gb_s, "floor_ms": self.floor_ms,
            "floor_tok_s": self.floor_tok_s, "share_of_floor": self.share,
        }  # fmt: skip
