"""Checks that a row has the same bits alone, among other rows, and at other places of a call.

An implementation that declares it (`is_row_invariant`) is called with all rows of a sample, then with parts of
them: runs of neighbours and scattered rows in random order, of sizes around those at which kernels change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.op.op import Implementation, Op
from firesteel.kernels.op.rows import Rows
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.proof.verify import Check, kernel_faults, pack_sample, with_fault

SIZES = (2, 7, 16, 17, 64, 128, 300, 1000)  # rows of the parts
SEED = 0


def check_rows(op: Op[Any, Any], implementation: Implementation[Any, Any], sample: Sample) -> Check | None:
    """Returns the outcome on one sample; None if nothing is promised, or fewer than two rows can be compared."""
    rows = op.rows
    if not implementation.is_row_invariant or rows is None or rows.count(sample.args[0]) < 2:
        return None
    row = Check(op.name, implementation.name, f"{sample.label}: rows alone = among others")
    try:
        sample = pack_sample(implementation, sample)
        if refusal := implementation.accepts(*sample.args) if implementation.accepts else None:
            return replace(row, refusal=refusal)
        failure = _find_difference(rows, implementation, sample)
    except kernel_faults() as error:
        return with_fault(row, error)
    return replace(row, failure=failure) if failure else replace(row, worst=0.0, rms=0.0)


def _find_difference(rows: Rows, implementation: Implementation[Any, Any], sample: Sample) -> str | None:
    """Returns the first row that has other bits in a part of the call, or None."""
    count = rows.count(sample.args[0])
    whole = _run(rows, implementation, sample.clone()[0])
    for part in list_parts(count):
        kept = rows.keep(sample.clone()[0], part)
        at = torch.tensor(part, device=whole[0].device)
        for number, (expected, actual) in enumerate(zip(whole, _run(rows, implementation, kept), strict=True)):
            wrong = (_bits(expected[at]) != _bits(actual)).flatten(1)
            if not wrong.any():
                continue
            place = int(wrong.any(1).nonzero()[0, 0])
            return (
                f"result {number}: row {part[place]} of {count} has other bits as row {place} of {len(part)}, in "
                f"{int(wrong[place].sum())} of {wrong.shape[1]} bytes"
            )
    return None


def _run(rows: Rows, implementation: Implementation[Any, Any], operands: Any) -> list[Tensor]:
    return rows.results(operands, implementation.function(operands))


def list_parts(count: int) -> Iterator[list[int]]:
    """Yields the rows of each part of a call of `count` rows: single ones, neighbours, and some in random order."""
    rng = random.Random(SEED)
    yield from ([row] for row in sorted({0, count // 2, count - 1}))
    for size in SIZES:
        if size >= count:
            break
        first = rng.randint(0, count - size)
        yield list(range(first, first + size))
        yield rng.sample(range(count), size)
    yield list(range(1, count))
    yield list(reversed(range(count)))


def _bits(tensor: Tensor) -> Tensor:
    """Returns [rows, bytes]."""
    return tensor.contiguous().flatten(1).view(torch.uint8) if tensor.dim() > 1 else _bits(tensor[:, None])
