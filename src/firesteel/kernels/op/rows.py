"""Rows of a call: what batch invariance is checked on.

A row is what one token, or one request that is sampled, contributes. Row-invariant implementations give a row the
same bits in every call that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How calls of an op are taken apart. The op has one argument, its operands."""

    count: Callable[[Any], int]
    keep: Callable[[Any, Sequence[int]], Any]  # operands of a call with these rows only, in this order
    results: Callable[[Any, Any], list[Tensor]]  # from operands and result: tensors [rows, ...]


def rows_of(*names: str, results: Callable[[Any, Any], list[Tensor]] | None = None) -> Rows:
    """Returns the rows of an op whose operands `names` are tensors [T, ...], or hold them, or are None.

    Results are all tensors of the result, or what `results` makes of operands and result.
    """

    def keep(operands: Any, rows: Sequence[int]) -> Any:
        return replace(operands, **{name: _take(getattr(operands, name), rows) for name in names})

    return Rows(
        count=lambda operands: int(getattr(operands, names[0]).shape[0]),
        keep=keep,
        results=results or (lambda operands, result: _tensors(result)),
    )


def _take(value: Any, rows: Sequence[int]) -> Any:
    if isinstance(value, Tensor):
        return value[torch.tensor(rows, dtype=torch.int64, device=value.device)]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: _take(getattr(value, part.name), rows) for part in fields(value)})
    return value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    if is_dataclass(value):
        return [tensor for part in fields(value) for tensor in _tensors(getattr(value, part.name))]
    return []
