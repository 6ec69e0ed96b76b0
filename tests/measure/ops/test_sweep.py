"""Checks before and after a benchmark of ops: implementations and requirements."""

from dataclasses import replace

import pytest

from firesteel.errors import KernelError
from firesteel.kernels.op.requirement import parse_requirements
from firesteel.kernels.operands.shapes import ModelShapes
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.route import route
from firesteel.measure.ops import bench
from firesteel.measure.ops import sweep as sweep_module
from firesteel.measure.ops.bench import bench_ops
from firesteel.measure.ops.sweep import OpsSweep, check_implementations, check_measured, check_required, choose
from tests.measure.ops.small_model import CEILINGS, CPU, TINY

SINGLE = parse_requirements("route=single")


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    """Rotating through the cache of a real machine takes long."""
    monkeypatch.setattr(bench, "find_cache_bytes", lambda device: 1 << 10)


def sweep(*ops, **changes):
    return replace(OpsSweep(spec=TINY, ops=ops, ms=(1, 3)), **changes)


def test_reference_of_a_gpu_is_chosen_only_if_named():
    def names(*args):
        return [implementation.name for implementation in choose(moe_matmul, *args)]

    gpu = replace(CPU, name="GPU", capability=(9, 0))
    assert names(gpu) == [
        "triton:gemv",
        "triton:gemm",
        "cuda:stream",
        "cuda:wgmma",
        "cuda:wgmma_fp8",
        "cuda:wgmma_split",
    ]
    assert names(gpu, ("triton:gemm", "reference")) == ["reference", "triton:gemm"]
    assert names(gpu, ("triton",)) == ["triton:gemv", "triton:gemm"]
    assert names(CPU) == ["reference"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("moe=triton", "moe_matmul=triton is required, but it needs an NVIDIA GPU"),
        (
            "moe=cutlass",
            "moe_matmul=cutlass is required, but moe_matmul has only reference, triton:gemv, triton:gemm",
        ),
        ("moe=reference@bf16", "moe_matmul=reference@bf16 is required, but CPU runs no compiled kernels"),
    ],
)
def test_requirement_that_cannot_run_is_an_error(text, message):
    with pytest.raises(KernelError, match=message):
        check_required(sweep(moe_matmul), CPU, parse_requirements(text))


def test_required_implementation_must_accept_the_arguments_at_every_m(single):
    single(lambda operands: "takes one token" if len(operands.x) > 1 else None)
    check_required(sweep(route, ms=(1,)), CPU, SINGLE)
    check_required(sweep(moe_matmul, ms=(3,)), CPU, SINGLE)  # the required op is not measured
    with pytest.raises(KernelError, match="route=single is required, but at M=3 single takes one token"):
        check_required(sweep(route), CPU, SINGLE)


def test_requirement_that_is_not_among_the_implementations_is_an_error(single):
    """The check passed, and only the reference was measured."""
    single()
    check_required(sweep(route, implementations=("reference", "single")), CPU, SINGLE)
    with pytest.raises(KernelError, match=r"route=single is required, .* measured: add --implementation single"):
        check_required(sweep(route, implementations=("reference",)), CPU, SINGLE)
    gpu = replace(CPU, name="GPU", capability=(9, 0))
    with pytest.raises(KernelError, match="add --implementation reference"):
        check_required(sweep(route), gpu, parse_requirements("route=reference"))


def test_requirement_that_does_not_fit_into_memory_is_an_error(single, monkeypatch):
    single()
    monkeypatch.setattr(
        sweep_module, "too_large", lambda workload, *rest: "not run: needs 9 GB" if workload.m > 1 else None
    )
    check_required(sweep(route, ms=(1,)), CPU, SINGLE)
    with pytest.raises(KernelError, match="route=single is required, but at M=3 single is not run: needs 9 GB"):
        check_required(sweep(route), CPU, SINGLE)


def test_requirement_of_an_op_without_workloads_is_an_error(single):
    single()
    with pytest.raises(KernelError, match="route is not measured with --activation mxfp8 and --m 1, 3"):
        check_required(sweep(route, activations=("mxfp8",)), CPU, SINGLE)


def test_requirement_must_have_figures_at_every_m(single):
    def breaks(operands):
        if len(operands.x) > 1:
            raise RuntimeError("out of resources")
        return route.reference(operands)

    single(function=breaks)
    outcomes = list(bench_ops(sweep(route, rms_norm), CPU, CEILINGS))
    check_measured([outcome for outcome in outcomes if outcome.m == 1], SINGLE)
    with pytest.raises(KernelError, match="at M=3 it was not measured: failed: RuntimeError: out of resources"):
        check_measured(outcomes, SINGLE)


def test_unknown_implementation_is_an_error():
    with pytest.raises(KernelError, match="no op runs 'tritn' on CPU; available: reference"):
        check_implementations(sweep(moe_matmul, implementations=("reference", "tritn")), CPU)


def test_fp8_is_measured_of_the_experts_only():
    swept = sweep(moe_matmul, linear, route, activations=("fp8",)).workloads(ModelShapes(TINY, CPU))
    assert {(workload.op.name, workload.activation) for workload in swept} == {("moe_matmul", "fp8")}
    (operands,) = swept[0].part.draw()
    assert operands.activation == "fp8" and operands.fed is None
