"""Proofs of many variants in parallel processes, and with older compilers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import firesteel
from firesteel.device.host_memory import HostMemory
from firesteel.kernels.cuda.source import CudaSource
from firesteel.kernels.op.device_code import CudaCode, DeviceCode
from firesteel.kernels.ops.quantize_mxfp8 import quantize_mxfp8
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.proof import prove_all as compile_all
from firesteel.kernels.proof.isolate import Died
from firesteel.kernels.proof.prove import prove
from firesteel.kernels.proof.prove_all import Failure, Task, count_workers, prove_all
from firesteel.kernels.registry import find_op

OLDER_TRITON = "3.7.0"


def test_processes_prove_what_this_one_proves_in_order_and_report_progress(monkeypatch):
    monkeypatch.setattr(compile_all, "FEW", 0)
    steps = []
    ops = [quantize_mxfp8, rms_norm]
    proofs, failures = prove_all(
        ops, ["sm_90a"], workers=2, progress=lambda done, total: steps.append((done, total))
    )
    assert proofs == prove(ops, "sm_90a") and failures == []
    assert steps == [(done, len(proofs)) for done in range(1, len(proofs) + 1)]


def test_a_variant_that_does_not_compile_leaves_the_others_proven(monkeypatch):
    code, _ = rms_norm.make_device_code((9, 0))
    broken = DeviceCode(
        variant="broken", kernel=code.kernel, signature=code.signature, constants={**code.constants, "TILE": 3}
    )
    monkeypatch.setattr(rms_norm, "make_device_code", lambda capability: iter([broken, code]))
    proofs, (failure,) = prove_all([rms_norm], ["sm_90a"], workers=1)
    assert [proof.variant for proof in proofs] == [code.variant]
    assert (failure.op, failure.variant, failure.target) == ("rms_norm", "broken", "sm_90a")
    assert isinstance(failure, Failure) and "CompilationError" in failure.reason


def test_cuda_that_does_not_compile_leaves_the_others_proven(monkeypatch, kernel_cache, small, tmp_path):
    (tmp_path / "wrong.cu").write_text("wrong")
    wrong = CudaCode(variant="wrong", kernel=CudaSource("wrong.cu", folder=tmp_path).kernel("wrong", threads=32))
    right = CudaCode(variant="right", kernel=small("step"))
    monkeypatch.setattr(rms_norm, "make_device_code", lambda capability: iter([wrong, right]))
    (proof,), (failure,) = prove_all([rms_norm], ["sm_90a"], workers=1)
    assert proof.variant == "right" and failure.variant == "wrong"
    assert failure.reason.startswith("wrong.cu does not compile for sm_90a")


def test_a_compiler_that_aborts_is_a_failure_of_its_variant(monkeypatch):
    monkeypatch.setattr(compile_all, "FEW", 0)
    died = Died("its process was ended by SIGABRT")
    monkeypatch.setattr(
        compile_all, "call_apart", lambda function, tasks, workers: iter([died, function(tasks[1])])
    )
    (proof,), (failure,) = prove_all([quantize_mxfp8], ["sm_90a"], workers=2)
    assert failure == Failure("quantize_mxfp8", "triton K=2880", "sm_90a", "its process was ended by SIGABRT")
    assert proof.variant == "triton K=4096"


def test_one_worker_per_core_as_far_as_memory_allows(monkeypatch):
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(compile_all, "find_host_memory", lambda: HostMemory(1 << 50, 1 << 50))
    assert count_workers() == min(cores, compile_all.MAX_WORKERS)
    monkeypatch.setattr(compile_all, "find_host_memory", lambda: HostMemory(1 << 50, 1 << 20))
    assert count_workers() == 1


PROVE_MOE = """
import json
from firesteel.kernels.proof.prove_all import Task, prove_task
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.proof.prove import list_code
codes = list_code(moe_matmul, "sm_121a")
wanted = [n for n, code in enumerate(codes) if code.variant.split()[0] == "triton:gemm" and "fc" in code.variant]
print(json.dumps([prove_task(Task("moe_matmul", number, "sm_121a")).as_dict() for number in wanted]))
"""


@pytest.mark.peer
def test_an_older_triton_is_found_to_fall_back_on_sm121(tmp_path):
    """Compiles the same source with Triton 3.7, where block-scaled products silently become bf16."""
    older = tmp_path / "older"
    wheel = ["--quiet", "--no-deps", "--target", str(older), f"triton=={OLDER_TRITON}"]
    install = [sys.executable, "-m", "pip", "install", *wheel]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=600)
    assert installed.returncode == 0, f"pip cannot install Triton {OLDER_TRITON}: {installed.stderr}"
    verdicts = prove_moe([older], tmp_path)
    assert {compiler for _, compiler in verdicts.values()} == {f"triton {OLDER_TRITON}"}
    rounded = {variant: verdict for variant, (verdict, _) in verdicts.items() if "mxfp" in variant}
    assert len(rounded) == 16 and set(rounded.values()) == {"bf16"}, rounded


@pytest.mark.slow
def test_this_triton_is_native_on_sm121(tmp_path):
    verdicts = prove_moe([], tmp_path)
    rounded = {variant: verdict for variant, (verdict, _) in verdicts.items() if "mxfp" in variant}
    assert len(rounded) == 16 and set(rounded.values()) == {"native-fp4"}, rounded


def prove_moe(before, folder):
    """Returns {variant: (verdict, compiler)} of the large matmuls, with the folders `before` first on the path."""
    path = os.pathsep.join(map(str, [*before, Path(firesteel.__file__).parents[1]]))
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", PROVE_MOE], capture_output=True, text=True, env=environment, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return {proof["variant"]: (proof["verdict"], proof["compiler"]) for proof in json.loads(done.stdout)}


def test_a_task_names_an_op_and_the_number_of_its_variant():
    codes = list(find_op("rms_norm").make_device_code((9, 0)))
    assert compile_all.prove_task(Task("rms_norm", 0, "sm_90a")).variant == codes[0].variant
