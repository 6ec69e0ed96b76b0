"""Limits that follow the device unless they are configured."""

from dataclasses import replace

import pytest

from firesteel.config import BatchConfig
from firesteel.device import GIB, find_device
from firesteel.engine.limits import find_budget, find_most_requests


@pytest.mark.parametrize(
    ("capability", "gib", "asked", "budget"),
    [((9, 0), 139, 0, 8192), ((12, 1), 24, 0, 2048), (None, 500, 0, 2048), ((9, 0), 139, 7, 7)],
    ids=str,
)
def test_step_of_a_large_gpu_takes_more_tokens_unless_configured(capability, gib, asked, budget):
    device = replace(find_device("cpu"), capability=capability, memory_bytes=gib * GIB)
    assert find_budget(BatchConfig(max_num_batched_tokens=asked), device) == budget


@pytest.mark.parametrize(
    ("capability", "gib", "is_unified", "asked", "most"),
    [
        ((9, 0), 139, False, 0, 256),
        ((9, 0), 100, False, 0, 256),
        ((9, 0), 79, False, 0, 128),
        ((8, 0), 40, False, 0, 128),
        ((8, 0), 39, False, 0, 64),
        ((12, 1), 119, True, 0, 128),
        (None, 500, False, 0, 64),
        ((9, 0), 139, False, 7, 7),
        (None, 8, False, 300, 300),
    ],
    ids=str,
)
def test_more_requests_run_together_with_more_memory_unless_configured(capability, gib, is_unified, asked, most):
    facts = {"capability": capability, "memory_bytes": gib * GIB, "is_unified": is_unified}
    assert find_most_requests(BatchConfig(max_num_seqs=asked), replace(find_device("cpu"), **facts)) == most
