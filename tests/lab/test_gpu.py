"""Memory of GPUs as the management library tells it."""

import pytest
import torch

from firesteel.lab import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_known():
    assert gpu.used_bytes() is None


@pytest.mark.gpu
def test_memory_that_is_taken_is_counted():
    before = gpu.used_bytes()
    held = torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    assert gpu.used_bytes() - before >= held.nbytes
