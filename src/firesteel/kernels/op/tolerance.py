"""Tolerances: how far an implementation may differ from its reference, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Both bounds hold: the worst element relative to the largest expected one, and the rms error.

    `own` returns the bounds of a tensor or a dataclass among the results, or None if it has none of its own.
    """

    worst: float
    rms: float
    why: str
    own: Callable[[object], Tolerance | None] | None = None


class Errors(NamedTuple):
    """The largest errors of all results, as Tolerance defines them."""

    worst: float = 0.0
    rms: float = 0.0


def fp32(*, worst: float = 1e-5, rms: float = 1e-6, why: str) -> Tolerance:
    return Tolerance(worst=worst, rms=rms, why=why)


def bf16(*, ulps: float, why: str, own: Callable[[object], Tolerance | None] | None = None) -> Tolerance:
    """Returns a tolerance of `ulps` units in the last place of bf16 (8 mantissa bits with the hidden one).

    Sums on either side of a rounding border end a whole unit apart: 2^-7 of a value just above a power of two.
    """
    return Tolerance(worst=ulps * 2.0**-7, rms=ulps * 2.0**-9, why=why, own=own)


def exact(*, why: str) -> Tolerance:
    return Tolerance(worst=0.0, rms=0.0, why=why)


def assert_close(*, actual: object, expected: object, tolerance: Tolerance) -> Errors:
    """Raises AssertionError with the figures unless every tensor of `actual` is within tolerance."""
    actual_parts, expected_parts = _tensors(actual, tolerance), _tensors(expected, tolerance)
    assert len(actual_parts) == len(expected_parts), f"{len(actual_parts)} results, not {len(expected_parts)}"
    errors = [Errors()]
    for number, ((got, _), (want, bounds)) in enumerate(zip(actual_parts, expected_parts, strict=True)):
        assert got.shape == want.shape, f"result {number}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
        assert got.dtype == want.dtype, f"result {number}: {got.dtype}, not {want.dtype}"
        errors.append(_assert_tensor(got, want, bounds, number))
    return Errors(*(max(column) for column in zip(*errors, strict=True)))


def _tensors(value: object, tolerance: Tolerance) -> list[tuple[Tensor, Tolerance]]:
    """Returns every tensor in `value` with the bounds that hold for it."""
    if isinstance(value, tuple | list):
        return [part for item in value for part in _tensors(item, tolerance)]
    own = tolerance.own(value) if tolerance.own is not None else None
    if isinstance(value, Tensor):
        return [(value, own or tolerance)]
    assert is_dataclass(value), f"an op returns tensors, not {type(value).__name__}"
    parts = (getattr(value, part.name) for part in fields(value))
    return [(part, own or tolerance) for part in parts if isinstance(part, Tensor)]


def _assert_tensor(actual: Tensor, expected: Tensor, tolerance: Tolerance, number: int) -> Errors:
    actual, expected = actual.double(), expected.double()
    finite = expected.isfinite()
    same_elsewhere = torch.equal(actual[~finite].nan_to_num(nan=0.5), expected[~finite].nan_to_num(nan=0.5))
    assert same_elsewhere, f"result {number}: non-finite values differ from the reference's"
    difference, magnitude = (actual - expected)[finite].abs(), expected[finite].abs()
    if difference.numel() == 0:
        return Errors()
    largest = magnitude.max().clamp(min=1e-30)
    worst = float(difference.max() / largest)
    rms = float(difference.square().mean().sqrt() / magnitude.square().mean().sqrt().clamp(min=1e-30))
    assert worst <= tolerance.worst and rms <= tolerance.rms, (
        f"result {number}: worst {worst:.3g} (allowed {tolerance.worst:.3g}), "
        f"rms {rms:.3g} (allowed {tolerance.rms:.3g}); {tolerance.why}"
    )
    return Errors(worst, rms)
