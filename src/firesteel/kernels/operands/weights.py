"""Weights as ops take them: one MXFP4 matrix, and the experts of a layer, packed as in the checkpoint.

Shape letters: M rows, N columns, E experts, H hidden, I intermediate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from firesteel.kernels.call_key import Described


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp4Weight(Described):
    """[M, N] in MXFP4: codes two to a byte and a scale for each 32, as in a checkpoint."""

    codes: Tensor  # [M, N/2] uint8
    scales: Tensor  # [M, N/32] uint8

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Described):
    """The experts of one layer, values and scales as in the checkpoint."""

    gate_up_codes: Tensor  # [E, 2I, H/2] uint8
    gate_up_scales: Tensor  # [E, 2I, H/32] uint8
    gate_up_bias: Tensor  # [E, 2I] bf16
    down_codes: Tensor  # [E, H, I/2] uint8
    down_scales: Tensor  # [E, H, I/32] uint8
    down_bias: Tensor  # [E, H] bf16

    @property
    def expert_bytes(self) -> int:
        """Of one expert."""
        return sum(int(getattr(self, part.name)[0].nbytes) for part in fields(self))
