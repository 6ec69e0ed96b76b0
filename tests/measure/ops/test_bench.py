"""Benchmarks of ops: what is measured, against which ceiling, and what is refused before anything runs."""

from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.errors import KernelError
from firesteel.kernels.ledger import Launch, note
from firesteel.kernels.op.op import anywhere
from firesteel.kernels.op.requirement import parse_requirements
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.route import route
from firesteel.kernels.rope import RopeSpec
from firesteel.measure.ops import bench, memory
from firesteel.measure.ops.bench import OpsSweep, bench_ops, check_required, choose
from firesteel.measure.ops.outcome import Ceilings
from firesteel.measure.ops.shapes import ModelShapes
from firesteel.measure.ops.workloads import list_workloads
from firesteel.measure.roofline.ceiling import Ceiling
from firesteel.measure.timing import Timing
from firesteel.model.spec import ModelSpec

CPU = find_device("cpu")
TINY = ModelSpec(
    num_layers=2, hidden_size=96, intermediate_size=64, num_heads=4, num_kv_heads=2, head_dim=32, num_experts=6,
    num_active=2, vocab_size=272, windows=(8, None), rope=RopeSpec(theta=150000.0), max_context=256,
)  # fmt: skip
SECOND = Timing(samples_s=(1.0, 1.0, 2.0), calls=1, warmups=1)
CEILINGS = Ceilings(
    read=Ceiling(work=100e9, scale=1e9, unit="GB/s", timing=SECOND),
    matrix=Ceiling(work=10e12, scale=1e12, unit="TFLOP/s", timing=SECOND), matrix_type="float32",
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    """A rotation through the cache of a real machine takes long."""
    monkeypatch.setattr(bench, "find_cache_bytes", lambda device: 1 << 10)


def plan(*ops, **changes):
    return replace(OpsSweep(spec=TINY, ops=ops, ms=(1, 3)), **changes)


def measured(*ops, device=CPU, **changes):
    return list(bench_ops(plan(*ops, **changes), device, CEILINGS))


def test_every_op_part_and_m_is_measured_and_progress_told():
    steps = []
    outcomes = list(
        bench_ops(plan(rms_norm, linear), CPU, CEILINGS, progress=lambda done, total: steps.append((done, total)))
    )
    assert [(one.op, one.part, one.m) for one in outcomes if one.op == "rms_norm"] == [
        ("rms_norm", "", 1), ("rms_norm", "", 3),
    ]  # fmt: skip
    assert len([one for one in outcomes if one.op == "linear"]) == 2 * 6
    assert all(one.figures.median_s > 0 and one.implementation == "reference" for one in outcomes)
    assert steps == [(done, 14) for done in range(1, 15)]


def test_bytes_are_the_ops_own_over_the_rotation():
    (outcome,) = measured(rms_norm, ms=(3,))
    (workload,) = list_workloads(rms_norm, 3, "bf16", ModelShapes(TINY, CPU))
    assert outcome.figures.bytes == rms_norm.bytes(*workload.part.draw())
    assert outcome.figures.rotation_bytes >= 3 << 10  # thrice the cache


def test_memory_bounds_the_rotation_and_what_is_too_large_is_not_run(monkeypatch):
    monkeypatch.setattr(bench, "find_cache_bytes", lambda device: 1 << 30)
    free = iter([1 << 30, 1 << 30, 1 << 28])
    monkeypatch.setattr(bench, "available_bytes", lambda device: next(free))
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1 << 30)
    (outcome,) = measured(rms_norm, ms=(1,))
    assert outcome.figures.rotation_bytes == 2 * outcome.figures.bytes
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    (outcome,) = measured(rms_norm, ms=(1,))
    assert outcome.figures is None and outcome.why.startswith("not run: needs 0.0 GB") and not outcome.failed


def test_refusals_and_breakdowns_are_told_and_the_rest_is_measured(monkeypatch):
    def broken(*args):
        raise RuntimeError("out of resources")

    few = dict(rms_norm.implementations)
    monkeypatch.setattr(rms_norm, "implementations", few)
    rms_norm.implementation("picky", needs=anywhere, accepts=lambda *args: "takes nothing")(broken)
    rms_norm.implementation("broken", needs=anywhere)(broken)
    outcomes = {one.implementation: one for one in measured(rms_norm, ms=(1,))}
    assert outcomes["reference"].figures is not None
    assert outcomes["picky"].why == "refused: takes nothing" and not outcomes["picky"].failed
    assert outcomes["broken"].why == "failed: RuntimeError: out of resources" and outcomes["broken"].failed
    assert "median_s" not in outcomes["broken"].as_dict()


def test_a_gpus_reference_is_measured_only_if_asked_for():
    gpu = replace(CPU, name="GPU", capability=(9, 0))
    ways = ["triton:gemv", "triton:gemm", "cuda:stream"]
    assert [one.name for one in choose(moe_matmul, gpu)] == ways
    assert [one.name for one in choose(moe_matmul, gpu, ("triton:gemm", "reference"))] == [
        "reference",
        "triton:gemm",
    ]
    assert [one.name for one in choose(moe_matmul, gpu, ("triton",))] == ["triton:gemv", "triton:gemm"]
    assert [one.name for one in choose(moe_matmul, CPU)] == ["reference"]


def test_activations_come_into_the_outcome():
    outcomes = measured(moe_matmul, rms_norm, ms=(1,), activations=("bf16", "mxfp8"))
    assert [(one.op, one.activation) for one in outcomes] == [
        ("moe_matmul", "bf16"), ("moe_matmul", "mxfp8"), ("rms_norm", ""),
    ]  # fmt: skip


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
def test_a_requirement_that_would_not_run_is_an_error(text, message):
    with pytest.raises(KernelError, match=message):
        check_required(plan(moe_matmul), CPU, parse_requirements(text))


def test_a_requirement_must_take_the_arguments_at_every_m(monkeypatch):
    few = dict(route.implementations)
    monkeypatch.setattr(route, "implementations", few)
    refuse = lambda x, *args: "takes one token" if x.shape[0] > 1 else None  # noqa: E731
    route.implementation("single", needs=anywhere, accepts=refuse)(route.reference)
    required = parse_requirements("route=single")
    check_required(plan(route, ms=(1,)), CPU, required)
    check_required(plan(moe_matmul, ms=(3,)), CPU, required)  # of an op that is not measured
    with pytest.raises(KernelError, match="route=single is required, but at M=3 single takes one token"):
        check_required(plan(route), CPU, required)


@pytest.fixture
def single(monkeypatch):
    """single(accepts) makes it an implementation of route."""

    def add(accepts=None, function=route.reference):
        monkeypatch.setattr(route, "implementations", dict(route.implementations))
        route.implementation("single", needs=anywhere, accepts=accepts)(function)

    return add


SINGLE = parse_requirements("route=single")


def test_a_requirement_that_the_plan_leaves_out_is_an_error(single):
    """It passed, and the reference alone was measured."""
    single()
    check_required(plan(route, implementations=("reference", "single")), CPU, SINGLE)
    with pytest.raises(KernelError, match=r"route=single is required, .* measured: add --implementation single"):
        check_required(plan(route, implementations=("reference",)), CPU, SINGLE)
    gpu = replace(CPU, name="GPU", capability=(9, 0))
    with pytest.raises(KernelError, match="add --implementation reference"):
        check_required(plan(route), gpu, parse_requirements("route=reference"))


def test_a_requirement_that_memory_has_no_room_for_is_an_error(single, monkeypatch):
    single()
    monkeypatch.setattr(
        bench, "too_large", lambda workload, *rest: "not run: needs 9 GB" if workload.m > 1 else None
    )
    check_required(plan(route, ms=(1,)), CPU, SINGLE)
    with pytest.raises(KernelError, match="route=single is required, but at M=3 single is not run: needs 9 GB"):
        check_required(plan(route), CPU, SINGLE)


def test_a_requirement_of_an_op_that_has_no_workload_there_is_an_error(single):
    single()
    with pytest.raises(KernelError, match="route is not measured with --activation mxfp8 and --m 1, 3"):
        check_required(plan(route, activations=("mxfp8",)), CPU, SINGLE)


def test_what_is_required_must_have_figures_at_every_m(single):
    def breaks(x, *args):
        if x.shape[0] > 1:
            raise RuntimeError("out of resources")
        return route.reference(x, *args)

    single(function=breaks)
    outcomes = measured(route, rms_norm)
    bench.check_measured([one for one in outcomes if one.m == 1], SINGLE)
    with pytest.raises(KernelError, match="at M=3 it was not measured: failed: RuntimeError: out of resources"):
        bench.check_measured(outcomes, SINGLE)


@pytest.mark.parametrize(("verdict", "fails"), [("bf16", True), ("native-fp4", False)])
def test_what_is_launched_is_judged_where_a_verdict_is_required(single, monkeypatch, verdict, fails):
    """Tiles and shapes decide what is compiled: what was proven beforehand need not be what is launched."""

    def launches(*args):
        note(Launch(kernel="logits", tile="64x64", artefact="0" * 8, compiled=object()))
        return route.reference(*args)

    single(function=launches)
    monkeypatch.setattr("firesteel.kernels.op.op.judge_compiled", lambda compiled: verdict)
    required = parse_requirements("route=single@native-fp4")
    asked = plan(route, ms=(1,), implementations=("single",))
    (outcome,) = bench_ops(asked, CPU, CEILINGS, required=required)
    assert outcome.failed == fails and (outcome.figures is None) == fails
    assert not fails or "logits 64x64 was launched and is bf16" in outcome.why


def test_an_implementation_that_no_op_has_is_an_error():
    with pytest.raises(KernelError, match="no op runs 'tritn' on CPU; here there is reference"):
        bench.check_implementations(plan(moe_matmul, implementations=("reference", "tritn")), CPU)


def test_a_fault_while_arguments_are_drawn_is_an_outcome_and_the_rest_is_measured(monkeypatch):
    drawn = iter([RuntimeError("CUDA error"), None])

    def draw(workload, device):
        if (error := next(drawn)) is not None:
            raise error
        return [workload.part.draw()]

    monkeypatch.setattr(bench, "draw_inputs", draw)
    first, second = measured(rms_norm)
    assert first.failed and first.why == "failed: RuntimeError: CUDA error" and second.figures is not None


def test_after_the_device_has_failed_the_rest_is_listed_as_not_run(monkeypatch):
    def broken(*args):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(rms_norm, "implementations", dict(rms_norm.implementations))
    monkeypatch.setattr(bench, "has_failed", lambda device: True)
    monkeypatch.setattr(bench, "choose", lambda op, device, wanted: [op.implementations["broken"], *reference(op)])
    rms_norm.implementation("broken", needs=anywhere)(broken)
    outcomes = measured(rms_norm)
    assert [(one.m, one.implementation, one.failed) for one in outcomes] == [
        (1, "broken", True), (1, "reference", False), (3, "broken", False), (3, "reference", False),
    ]  # fmt: skip
    assert {one.why for one in outcomes[1:]} == {"not run: the device failed earlier in rms_norm broken M=1"}


def reference(op):
    return [op.implementations["reference"]]


@pytest.mark.gpu
def test_peak_memory_is_that_of_each_measurement():
    gpu = find_device("cuda")
    held = torch.empty(1 << 28, device="cuda")
    del held
    (outcome,) = measured(rms_norm, device=gpu, ms=(1,))
    assert 0 < outcome.figures.peak_memory_bytes < 1 << 29


@pytest.mark.gpu
def test_triton_is_measured_cold_by_graph_replay_on_a_gpu(monkeypatch):
    gpu = find_device("cuda")
    monkeypatch.setattr(bench, "find_cache_bytes", lambda device: device.l2_bytes)
    asked = {"ms": (1, 64), "activations": ("bf16", "mxfp8"), "implementations": ("triton",)}
    outcomes = measured(rms_norm, moe_matmul, device=gpu, **asked)
    assert {one.implementation for one in outcomes} == {"triton", "triton:gemv", "triton:gemm"}
    assert all(one.figures is not None and not one.failed for one in outcomes), outcomes
    assert torch.cuda.memory_allocated() < 1 << 30
