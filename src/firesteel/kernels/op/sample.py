"""Samples: arguments to try an op with, in tests and in checks of correctness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from firesteel.kernels.op.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Sample:
    """Arguments to try an op with; ops may write into them, so each use takes its own copy."""

    label: str
    args: tuple[Any, ...]
    tolerance: Tolerance | None = None  # replaces the op's own

    def clone(self) -> tuple[Any, ...]:
        return tuple(_copy(arg) for arg in self.args)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.clone() if hasattr(value, "clone") else value
