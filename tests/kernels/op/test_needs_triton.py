import importlib.util
from dataclasses import replace

import pytest
import triton

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.needs import interpreting, triton_ready
from firesteel.kernels.registry import ALL_OPS

CPU = find_device("cpu")
T4 = replace(CPU, name="T4", capability=(7, 5))
A100 = replace(CPU, name="A100", capability=(8, 0))


def test_gpu_of_the_capability_is_ready_and_an_older_one_or_a_cpu_is_not():
    assert triton_ready()(A100) is None
    assert "8.0 or later, this is T4" in triton_ready()(T4)
    assert "8.0 or later, this is CPU" in triton_ready()(CPU)
    assert "9.0 or later, this is A100" in triton_ready(9, 0)(A100)


def test_the_interpreter_makes_any_device_ready(monkeypatch):
    assert not interpreting()
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert interpreting() and triton_ready()(CPU) is None


def test_without_triton_nothing_is_ready(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert triton_ready()(A100) == "needs Triton, which is not installed"


@pytest.mark.parametrize("op", ["rms_norm", "linear", "rope_kv_write", "route"])
def test_triton_runs_on_a_gpu_and_the_reference_on_a_cpu_or_if_requested(op):
    chosen = dict(Kernels(A100, {}, Ledger()).table())[op].split(", ")
    own = [name for name in chosen if name != "cublas"]
    assert own and all(name.partition(":")[0] == "triton" for name in own)
    assert dict(Kernels(A100, {op: "triton"}, Ledger()).table())[op].split(", ") == own
    assert dict(Kernels(A100, {op: "reference"}, Ledger()).table())[op] == "reference"
    assert dict(Kernels(CPU, {}, Ledger()).table())[op] == "reference"


def test_asking_for_triton_on_a_cpu_says_what_is_missing():
    with pytest.raises(KernelError, match="rms_norm=triton needs an NVIDIA GPU"):
        Kernels(CPU, {"rms_norm": "triton"}, Ledger())
    assert {op.name for op in ALL_OPS} >= {"rms_norm"}
