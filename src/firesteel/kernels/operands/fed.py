"""Activations stored in the order in which matmuls on MXFP4 weights read them.

The op that computes an activation can store it in this order (`rms_norm_fed`, the first matmul of the experts); a
matmul that is given plain rows reorders them itself, with a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.formats import feed, group, mxfp4, mxfp8
from firesteel.kernels.call_key import Described
from firesteel.kernels.operands.activation import ACTIVATIONS, round_activation


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed(Described):
    """x [T, K] rounded to `activation`, columns in the order of `formats.feed`.

    Native (see `is_native`) mxfp8 and mxfp4 are codes with scales; otherwise values are the bf16 numbers that such
    codes and scales stand for.
    """

    values: Tensor  # [T, K] bf16, or uint8 [T, K] of mxfp8, [T, K/2] of mxfp4
    scales: Tensor | None  # [T, K/32] e8m0 of codes
    activation: str

    @classmethod
    def empty(cls, shape: Sequence[int], activation: str, native: bool, device: torch.device) -> Fed:
        """Allocates room for x of `shape`."""
        rows, columns = shape
        if not native:
            values = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
            return cls(values=values, scales=None, activation=activation)
        width = columns // 2 if activation == "mxfp4" else columns
        values = torch.empty(rows, width, dtype=torch.uint8, device=device)
        scales = torch.empty(rows, columns // group.SIZE, dtype=torch.uint8, device=device)
        return cls(values=values, scales=scales, activation=activation)

    @property
    def stored(self) -> str:
        """The format of the values: bf16, mxfp8 or mxfp4."""
        return "bf16" if self.scales is None else self.activation

    @property
    def shape(self) -> tuple[int, int]:
        rows, width = self.values.shape
        return rows, 2 * width if self.stored == "mxfp4" else width

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)


def store(x: Tensor, activation: str, native: bool) -> Fed:
    """Stores x [T, K] in plain torch: the definition of what kernels store."""
    if not native:
        values = round_activation(x.float(), activation).bfloat16()
        return Fed(values=feed.pack(values, "bf16"), scales=None, activation=activation)
    codes, scales = {"mxfp8": mxfp8, "mxfp4": mxfp4}[activation].quantize(x)
    return Fed(values=feed.pack(codes, activation), scales=scales, activation=activation)


def refuse_activation(activation: str) -> str | None:
    """Returns why a kernel cannot round to `activation`, or None."""
    return None if activation in ACTIVATIONS else f"takes activations {', '.join(ACTIVATIONS)}, not {activation!r}"


def refuse_fed(fed: Fed | None, x: Tensor, activation: str, native: bool) -> str | None:
    """Returns why a matmul cannot read `fed` in place of x, or None."""
    if fed is None:
        return None
    wanted = (activation if native else "bf16", activation, tuple(x.shape))
    given = (fed.stored, fed.activation, fed.shape)
    if given != wanted:
        return f"wants {_describe(*wanted)}, but was given {_describe(*given)}"
    return None if fed.values.is_contiguous() else "wants stored rows that are contiguous"


def _describe(stored: str, activation: str, shape: tuple[int, ...]) -> str:
    return f"{shape[0]} x {shape[1]} values rounded to {activation} and stored as {stored}"
