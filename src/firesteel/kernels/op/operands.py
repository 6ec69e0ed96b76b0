"""The base classes of operands: one frozen dataclass per op serves its bytes, reference, `accepts` and launcher.

@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRouterOperands(Operands):
    r: Tensor  # [T, H] bf16, the residual
    ...
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Self

from torch import Tensor

from firesteel.kernels.call_key import Described
from firesteel.kernels.tiles.tile_pin import AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands(Described):
    """Everything that one call of an op reads and writes.

    A choice among implementations is kept by the description of the operands. Most operands are made for one call,
    so it is not kept with them; classes whose operands outlive a call take `describe` from Described.
    """

    describe = Described.describe_anew

    def clone(self) -> Self:
        """Returns operands whose tensors are copies, as ops may write into them; packed weights are shared."""
        cloned = copy.copy(self)
        for part in fields(self):
            if isinstance(value := getattr(self, part.name), Tensor):
                object.__setattr__(cloned, part.name, value.clone())
        return cloned


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedOperands(Operands):
    """Operands of an op that can round activations before they meet packed weights."""

    activation: str = "bf16"  # or mxfp8, mxfp4: what activations are rounded to


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledOperands(RoundedOperands):
    """Operands of a matmul on packed weights whose tile can be pinned."""

    tile: str = AUTO  # or ROWSxCOLUMNS: tokens times rows of the weight that a CTA computes
