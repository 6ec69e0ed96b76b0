"""The table of angles, built where vLLM builds models: with another default device and type."""

import torch

from firesteel.kernels.rope import RopeSpec, inverse_frequencies, rope_table
from firesteel.model.spec import PRESETS

YARN = PRESETS["gpt-oss-120b"].rope


def test_default_device_and_type_do_not_change_the_bits_of_the_table():
    """vLLM's default is the GPU, whose powers differ in their last bit: tokens differed from our engine's."""
    cpu = torch.device("cpu")
    expected = rope_table(YARN, 64, 256, cpu)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):  # computes nothing, so a tensor made there would fail or be empty
            frequencies = inverse_frequencies(YARN, 64)
            table = rope_table(YARN, 64, 256, cpu)
    finally:
        torch.set_default_dtype(before)
    assert frequencies.device == cpu and frequencies.dtype == torch.float32
    assert torch.equal(table, expected)


def test_factor_one_is_plain_rope():
    frequencies = inverse_frequencies(RopeSpec(theta=10000.0), 8)
    assert torch.allclose(frequencies, torch.tensor([1.0, 0.1, 0.01, 0.001]))
