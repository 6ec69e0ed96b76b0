"""Rotary angles of Llama layers by kind; their values are compared with the oracle's in test_eagle3.py."""

import pytest
import torch

from firesteel.kernels.rope import RopeSpec, rope_table
from firesteel.model.drafters.eagle3_rope import read_llama_rope
from firesteel.model.fields import SpecError

CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def table(**content):
    return read_llama_rope({"rope_theta": 500000.0, **content}).table(64, 300, CPU)


def test_plain_rope_is_that_of_the_target():
    expected = rope_table(RopeSpec(theta=500000.0), 64, 300, CPU)
    assert torch.equal(table(), expected)
    assert torch.equal(table(rope_scaling={"type": "default"}), expected)
    assert torch.equal(read_llama_rope({"rope_parameters": {"rope_theta": 500000.0}}).table(64, 300, CPU), expected)


def test_linear_scaling_divides_positions():
    scaled = table(rope_scaling={"rope_type": "linear", "factor": 4.0})
    torch.testing.assert_close(scaled[::4], table()[:75], atol=1e-4, rtol=0)


def test_llama3_keeps_fast_angles_and_divides_slow_ones():
    scaled, plain = table(rope_scaling=LLAMA3), table()
    assert torch.equal(scaled[:, 0], plain[:, 0])
    slowest = scaled[:, 63].asin() / plain[:, 63].asin().clamp(min=1e-12)
    torch.testing.assert_close(slowest[1:], torch.full((299,), 1 / 8), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling.rope_type = 'dynamic'"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"rope_theta": 0.5}, "rope_theta = 0.5: must exceed 1"),
        ({"rope_theta": None}, "rope_theta must be a positive number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5: must be 1"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor = 1 must exceed"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "rope_scaling.mscale"),
    ],
    ids=str,
)
def test_other_kinds_are_refused(content, message):
    with pytest.raises(SpecError, match=message):
        table(**content)
