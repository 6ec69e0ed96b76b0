"""The streaming read: every word is read once, for any length; interpreted on a CPU, compiled on a GPU."""

import importlib.util
from pathlib import Path

import pytest
import torch

from firesteel.device import find_device

PARTS = Path(__file__).with_name("stream_parts.py")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_interpreted_sums_match_torch(run_interpreted):
    run_interpreted(PARTS)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_buffer_beyond_32_bit_positions_is_an_error():
    from firesteel.measure.roofline.stream_read import stream_read

    with pytest.raises(ValueError, match="1073741825 words"):
        stream_read(torch.empty((1 << 30) + 1, dtype=torch.int32, device="meta"), num_sms=1)


@pytest.mark.gpu
@pytest.mark.parametrize("words", [1, 8193, (1 << 26) + 3])
def test_sums_on_a_gpu_match_torch(words):
    from firesteel.measure.roofline.stream_read import stream_read

    device = find_device("cuda")
    data = torch.arange(words, dtype=torch.int32, device=device.torch_device) % 1000
    assert stream_read(data, device.num_sms).long().sum() == data.long().sum()
