"""Room in memory: the size of a workload against a share of the free memory."""

import pytest

from firesteel.device import find_device
from firesteel.kernels.operands.shapes import ModelShapes
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.measure.ops import correctness, memory
from firesteel.measure.ops.memory import too_large
from firesteel.measure.ops.workloads import list_workloads
from firesteel.model.spec import PRESETS

CPU = find_device("cpu")


def moe(**options):
    (workload,) = list_workloads(moe_matmul, 1, "bf16", ModelShapes(PRESETS["gpt-oss-120b"], CPU, **options))
    return workload


@pytest.mark.parametrize(("free_gb", "fits"), [(24, True), (16, True), (8, False)])
def test_experts_of_120b_are_verified_on_a_gpu_of_24_gb(monkeypatch, free_gb, fits):
    monkeypatch.setattr(memory, "available_bytes", lambda device: int(free_gb * 0.93e9))
    assert (too_large(moe(expert_copies=1), CPU, correctness.MEMORY_SHARE) is None) == fits


def test_workload_that_does_not_fit_names_its_size(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10**9)
    assert too_large(moe(), CPU, 0.5) == "not run: needs 3.4 GB, 0.5 GB may be taken"
