"""Weights as ops take them: one MXFP4 matrix, and the experts of a layer, packed as in the checkpoint.

Shape letters: M rows, N columns, E experts, H hidden, I intermediate.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor

from firesteel.formats import e2m1_rows
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


class ExpertTensors(Described):
    """Base of the experts of one layer in any order: the first axis of every tensor is that of the experts."""

    __slots__ = ()

    @property
    def expert_bytes(self) -> int:
        """The size of one expert."""
        values = (getattr(self, part.name) for part in fields(cast(Any, self)))
        return sum(int(value[0].nbytes) for value in values if isinstance(value, Tensor))


@dataclass(frozen=True, slots=True, kw_only=True)
class E4m3Rows:
    """What widening the experts of a layer to E4M3 needs to know: the largest scale of each row, and who fits."""

    gate_up_bases: Tensor  # [E, 2I] uint8
    down_bases: Tensor  # [E, H] uint8
    fits: Tensor  # [E] int32: 1 if E4M3 represents each row exactly with one power of two
    num_unfit: int


class _Examined(ExpertTensors):
    """Keeps what was found out about the scales of experts, once."""

    __slots__ = ("_e4m3_rows", "_fits_bf16")

    _e4m3_rows: E4m3Rows
    _fits_bf16: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(_Examined):
    """The experts of one layer, values and scales as in the checkpoint.

    The first use of `fits_bf16`, `e4m3_rows` or the key of a call examines the scales, which synchronises; the
    scales must not change afterwards.
    """

    gate_up_codes: Tensor  # [E, 2I, H/2] uint8
    gate_up_scales: Tensor  # [E, 2I, H/32] uint8
    gate_up_bias: Tensor  # [E, 2I] bf16
    down_codes: Tensor  # [E, H, I/2] uint8
    down_scales: Tensor  # [E, H, I/32] uint8
    down_bias: Tensor  # [E, H] bf16

    @property
    def fits_bf16(self) -> bool:
        """True if bf16 holds all weights exactly, widened times 2^-32 as csrc/widen.cuh does."""
        if not hasattr(self, "_fits_bf16"):
            is_known = not self.gate_up_scales.is_meta
            found = not is_known or all(bool(e2m1_rows.fits_bf16(*bounds).all()) for bounds in self._find_bounds())
            object.__setattr__(self, "_fits_bf16", found)
        return self._fits_bf16

    @property
    def e4m3_rows(self) -> E4m3Rows:
        """What widening to E4M3 needs to know."""
        if not hasattr(self, "_e4m3_rows"):
            gate_up, down = self._find_bounds()
            fits = e2m1_rows.fits_e4m3(*gate_up).all(-1) & e2m1_rows.fits_e4m3(*down).all(-1)
            found = E4m3Rows(
                gate_up_bases=gate_up[1],
                down_bases=down[1],
                fits=fits.int(),
                num_unfit=int((~fits).sum()),
            )
            object.__setattr__(self, "_e4m3_rows", found)
        return self._e4m3_rows

    def describe_anew(self) -> Hashable:
        """Returns the key of the fields and of what implementations ask about their values, or None."""
        key = Described.describe_anew(self)
        return None if key is None else (key, self.fits_bf16)

    def _find_bounds(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return (
            e2m1_rows.find_bounds(self.gate_up_codes, self.gate_up_scales),
            e2m1_rows.find_bounds(self.down_codes, self.down_scales),
        )


def weight_parts(weight: Tensor | Mxfp4Weight) -> tuple[Tensor, Tensor | None]:
    """Returns the values and, of a packed weight, the scales, as kernels take them."""
    return (weight.codes, weight.scales) if isinstance(weight, Mxfp4Weight) else (weight, None)


def random_experts(num_experts: int, hidden: int, inter: int, generator: torch.Generator) -> Experts:
    """Returns experts of about unit gain: a random E2M1 code has an rms of 2.93."""

    def matrix(rows: int, columns: int) -> tuple[Tensor, Tensor]:
        shape = (num_experts, rows, columns // 2)
        codes = torch.randint(256, shape, dtype=torch.uint8, generator=generator, device=generator.device)
        exponent = round(127 - math.log2(2.93 * columns**0.5))
        scales = torch.randint(
            exponent - 1,
            exponent + 2,
            (num_experts, rows, columns // 32),
            dtype=torch.uint8,
            generator=generator,
            device=generator.device,
        )
        return codes, scales

    def bias(rows: int) -> Tensor:
        drawn = torch.randn(num_experts, rows, generator=generator, device=generator.device)
        return drawn.mul(0.1).bfloat16()

    gate_up, down = matrix(2 * inter, hidden), matrix(hidden, inter)
    return Experts(
        gate_up_codes=gate_up[0],
        gate_up_scales=gate_up[1],
        gate_up_bias=bias(2 * inter),
        down_codes=down[0],
        down_scales=down[1],
        down_bias=bias(hidden),
    )
