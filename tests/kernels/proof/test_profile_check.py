"""The ledger compared with a profiler: invented names on a CPU, the real profiler on a GPU."""

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.ops.rms_norm import RmsNormOperands
from firesteel.kernels.proof.profile_check import LaunchWatch, compare, own_kernels

OURS = {"fc1", "fc2", "rms_norm_kernel"}


def test_equal_counts_agree_and_kernels_of_torch_do_not_matter():
    seen = {"fc1": 2, "fc2": 2, "void at::native::elementwise_kernel": 9, "Memcpy DtoH (Device -> Pinned)": 3}
    assert compare({"fc1": 2, "fc2": 2}, seen, OURS) == []
    assert compare({}, {}, OURS) == []


@pytest.mark.parametrize(
    ("launched", "seen", "difference"),
    [
        ({"fc1": 2}, {"fc1": 1}, "fc1: the ledger has 2 launches, the profiler saw 1"),
        ({"fc1": 2}, {}, "fc1: the ledger has 2 launches, the profiler saw 0"),
        ({}, {"fc2": 4}, "fc2: the ledger has 0 launches, the profiler saw 4"),
        ({"new": 1}, {}, "new: the ledger has 1 launches, the profiler saw 0"),
    ],
)
def test_every_difference_is_reported(launched, seen, difference):
    assert compare(launched, seen, OURS) == [difference]


def test_own_kernels_are_those_that_ops_declare():
    names = own_kernels((9, 0))
    assert {"rms_norm_kernel", "fc1", "fc2", "attend"} <= names


@pytest.mark.gpu
def test_the_profiler_sees_what_the_ledger_counts():
    device = find_device("cuda")
    kernels = Kernels(device, {"rms_norm": "triton"}, Ledger())
    x = torch.randn(3, 2880, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(2880, device="cuda", dtype=torch.bfloat16)
    operands = RmsNormOperands(residual=x, update=x, weight=weight, eps=1e-5)
    kernels.rms_norm(operands)  # before the watch, so not counted
    with LaunchWatch(kernels.ledger, device) as watch:
        for _ in range(5):
            kernels.rms_norm(operands)
        (x @ x.T).sum().item()
    assert (watch.differences, watch.count) == ([], 5)


@pytest.mark.gpu
def test_launch_outside_the_ledger_is_found():
    device = find_device("cuda")
    kernels = Kernels(device, {"rms_norm": "triton"}, Ledger())
    x = torch.randn(3, 2880, device="cuda", dtype=torch.bfloat16)
    operands = RmsNormOperands(residual=x, update=x, weight=x[0].contiguous(), eps=1e-5)
    with LaunchWatch(kernels.ledger, device) as watch:
        kernels.rms_norm.op.implementations["triton"].function(operands)
    assert watch.differences == ["rms_norm_kernel: the ledger has 0 launches, the profiler saw 1"]
