"""The plan of attention=triton:mixed on the device is that of the rule in plain Python."""

from pathlib import Path

import pytest

from tests.kernels.ops.test_attention import sample

PARTS = Path(__file__).with_name("plan_parts.py")


@pytest.mark.parametrize("number", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_random_lengths_are_planned_by_the_rule_within_the_slots(number, run_interpreted):
    """Every tile of every request has all of its splits once, their slots are apart, and padding is covered."""
    run_interpreted(PARTS, str(number), samples=[sample("", [(1, 1)], page_size=16)])
