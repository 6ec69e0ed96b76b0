"""The streaming read: every word is read once, whatever the length; interpreted on a CPU, and as it is on a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from firesteel.device import find_device

# Interpreter and compiler cannot share a process.
CHILD = """
import torch
from firesteel.measure.stream_read import TILE_WORDS, stream_read
for length in (1, 5, TILE_WORDS, TILE_WORDS + 1, 19 * TILE_WORDS + 77):
    data = torch.arange(1, length + 1, dtype=torch.int32) % 1000
    sums = stream_read(data, num_sms=2)
    assert sums.dtype == torch.int32 and int(sums.sum()) == int(data.sum()), length
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_interpreted_sums_are_those_of_torch():
    source = Path(sys.modules["firesteel"].__file__).parents[1]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
    command = [sys.executable, "-W", "error", "-c", CHILD]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert child.returncode == 0, child.stderr[-4000:]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_more_words_than_positions_is_an_error():
    from firesteel.measure.stream_read import stream_read

    with pytest.raises(ValueError, match="1073741825 words"):
        stream_read(torch.empty((1 << 30) + 1, dtype=torch.int32, device="meta"), num_sms=1)


@pytest.mark.gpu
@pytest.mark.parametrize("words", [1, 8193, (1 << 26) + 3])
def test_sums_on_a_gpu_are_those_of_torch(words):
    from firesteel.measure.stream_read import stream_read

    device = find_device("cuda")
    data = torch.arange(words, dtype=torch.int32, device=device.torch_device) % 1000
    assert stream_read(data, device.num_sms).long().sum() == data.long().sum()
