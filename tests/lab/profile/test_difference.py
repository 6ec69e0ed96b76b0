"""Differences of two profiles, per step."""

import pytest

from firesteel.lab.profile.difference import compute_difference
from firesteel.lab.profile.profile import compute_profile
from firesteel.lab.trace import Slice


def profile(steps, **us):
    """A profile of kernels with these microseconds per step, one after the other."""
    slices, now = [], 0.0
    for _ in range(steps):
        for name, length in us.items():
            slices.append(Slice(name, now, now + length))
            now += length
    return compute_profile(slices, source=f"{steps} steps", steps=steps)


def test_differences_are_per_step_and_the_largest_is_first():
    before = profile(2, fused_moe_kernel=100.0, nvjet=50.0, mxfp8_quantize=10.0)
    after = profile(4, cutlass_moe=60.0, nvjet=51.0, mxfp8_quantize=10.0)
    difference = compute_difference(before, after)
    assert [(row.name, round(row.change_ms, 6)) for row in difference.categories] == [
        ("experts", -0.04),
        ("dense", 0.001),
        ("quantisation", 0.0),
        ("gaps", 0.0),
    ]
    assert [(row.name, round(row.change_ms, 6)) for row in difference.kernels[:3]] == [
        ("fused_moe_kernel", -0.1),
        ("cutlass_moe", 0.06),
        ("nvjet", 0.001),
    ]
    assert difference.step.change_ms == pytest.approx(-0.039)
    assert "(-24.4%); the largest change is in experts: -0.040 ms" in difference.in_words()
    assert difference.as_dict()["kernels"][0]["after_ms"] == 0.0
