"""Benchmarks of ops: workloads, ceilings, refusals and faults."""

from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.ledger import Launch, note
from firesteel.kernels.op.op import anywhere
from firesteel.kernels.op.requirement import parse_requirements
from firesteel.kernels.operands.shapes import ModelShapes
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.route import route
from firesteel.measure.ops import bench, memory
from firesteel.measure.ops.bench import bench_ops
from firesteel.measure.ops.sweep import OpsSweep, check_required
from firesteel.measure.ops.workloads import list_workloads
from firesteel.measure.timing import Timing
from tests.measure.ops.small_model import CEILINGS, CPU, TINY


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    """Rotating through the cache of a real machine takes long."""
    monkeypatch.setattr(bench, "find_cache_bytes", lambda device: 1 << 10)


def sweep(*ops, **changes):
    return replace(OpsSweep(spec=TINY, ops=ops, ms=(1, 3)), **changes)


def measured(*ops, device=CPU, **changes):
    return list(bench_ops(sweep(*ops, **changes), device, CEILINGS))


def test_every_op_part_and_m_is_measured_and_progress_reported():
    steps = []
    outcomes = list(
        bench_ops(sweep(rms_norm, linear), CPU, CEILINGS, progress=lambda done, total: steps.append((done, total)))
    )
    assert [(outcome.op, outcome.part, outcome.m) for outcome in outcomes if outcome.op == "rms_norm"] == [
        ("rms_norm", "", 1),
        ("rms_norm", "", 3),
    ]
    assert len([outcome for outcome in outcomes if outcome.op == "linear"]) == 2 * 6
    assert all(outcome.figures.median_s > 0 and outcome.implementation == "reference" for outcome in outcomes)
    assert steps == [(done, 14) for done in range(1, 15)]


def test_first_call_is_timed_apart_from_the_samples(monkeypatch):
    """A clock that moves a second each time it is read; timing of samples is not its business."""
    ticks = iter(range(100))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(bench, "time_calls", lambda *args, **options: Timing(samples_s=(0.5,), calls=1, warmups=0))
    (outcome,) = measured(rms_norm, ms=(1,))
    assert outcome.figures.first_call_s == 1.0 and outcome.figures.median_s == 0.5
    assert outcome.as_dict()["first_call_s"] == 1.0


def test_host_plan_is_timed_apart_from_what_is_launched(monkeypatch):
    """On a GPU; the clock moves a second each time it is read, and sessions are opened before."""
    ran = []

    def plan(operands):
        ran.append("open")
        return lambda: ran.append("plan") or (lambda: ran.append("launch"))

    def time_calls(function, inputs, device, *, graph=True, **options):
        for args in inputs:
            function(*args)
        return Timing(samples_s=(0.5,), calls=1, warmups=int(graph))

    ticks = iter(range(100))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: ran.append("clock") or float(next(ticks)))
    monkeypatch.setattr(bench, "time_calls", time_calls)
    timing, plan_s = bench._time_planned(plan, [(1,), (2,)], CPU)
    assert ran == ["open", "open", "clock", "plan", "plan", "clock", "launch", "launch"]
    assert plan_s == 0.5 and timing.warmups == 1  # captured


def test_bytes_are_the_mean_over_the_rotation():
    (outcome,) = measured(rms_norm, ms=(3,))
    (workload,) = list_workloads(rms_norm, 3, "bf16", ModelShapes(TINY, CPU))
    assert outcome.figures.bytes == rms_norm.bytes(*workload.part.draw())
    assert outcome.figures.rotation_bytes >= 3 << 10  # thrice the cache


def test_memory_limits_the_rotation_and_large_workloads_are_not_run(monkeypatch):
    monkeypatch.setattr(bench, "find_cache_bytes", lambda device: 1 << 30)
    free = iter([1 << 30, 1 << 30, 1 << 28])
    monkeypatch.setattr(bench, "available_bytes", lambda device: next(free))
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1 << 30)
    (outcome,) = measured(rms_norm, ms=(1,))
    assert outcome.figures.rotation_bytes == 2 * outcome.figures.bytes
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    (outcome,) = measured(rms_norm, ms=(1,))
    assert outcome.figures is None and outcome.why.startswith("not run: needs 0.0 GB") and not outcome.failed


def test_refusals_and_faults_are_reported_and_the_rest_is_measured(monkeypatch):
    def broken(*args):
        raise RuntimeError("out of resources")

    few = dict(rms_norm.implementations)
    monkeypatch.setattr(rms_norm, "implementations", few)
    rms_norm.implementation("picky", needs=anywhere, accepts=lambda *args: "takes nothing")(broken)
    rms_norm.implementation("broken", needs=anywhere)(broken)
    outcomes = {outcome.implementation: outcome for outcome in measured(rms_norm, ms=(1,))}
    assert outcomes["reference"].figures is not None
    assert outcomes["picky"].why == "refused: takes nothing" and not outcomes["picky"].failed
    assert outcomes["broken"].why == "failed: RuntimeError: out of resources" and outcomes["broken"].failed
    assert "median_s" not in outcomes["broken"].as_dict()


def test_outcomes_name_their_activation():
    outcomes = measured(moe_matmul, rms_norm, ms=(1,), activations=("bf16", "mxfp8"))
    assert [(outcome.op, outcome.activation) for outcome in outcomes] == [
        ("moe_matmul", "bf16"),
        ("moe_matmul", "mxfp8"),
        ("rms_norm", ""),
    ]


@pytest.mark.parametrize(("verdict", "fails"), [("bf16", True), ("native-fp4", False)])
def test_launched_code_is_judged_if_a_verdict_is_required(single, monkeypatch, verdict, fails):
    """Tiles and shapes decide what is compiled: launched code may differ from the code proven beforehand."""

    def launches(operands):
        note(Launch(kernel="logits", tile="64x64", artefact="0" * 8, compiled=object()))
        return route.reference(operands)

    single(function=launches)
    monkeypatch.setattr("firesteel.kernels.op.chosen.judge_compiled", lambda compiled: verdict)
    required = parse_requirements("route=single@native-fp4")
    asked = sweep(route, ms=(1,), implementations=("single",))
    (outcome,) = bench_ops(asked, CPU, CEILINGS, required=required)
    assert outcome.failed == fails and (outcome.figures is None) == fails
    assert not fails or "logits 64x64 was launched and is bf16" in outcome.why


def test_weights_are_reordered_before_the_measurement_and_refusals_see_their_order(monkeypatch):
    packed, ran = [], []

    def pack(calls):
        packed.append(len(calls))
        return [(replace(operands, tile="reordered"),) for (operands,) in calls]

    def accepts(operands):
        return None if operands.tile == "reordered" else "wants another order"

    def run(operands):
        ran.append(operands.tile)

    monkeypatch.setitem(moe_matmul.implementations, "other", None)
    moe_matmul.implementation("other", needs=anywhere, accepts=accepts, pack=pack)(run)
    asked = sweep(moe_matmul, ms=(1,), implementations=("other",))
    check_required(asked, CPU, parse_requirements("moe_matmul=other"))
    packed.clear()
    (outcome,) = bench_ops(asked, CPU, CEILINGS)
    assert outcome.figures is not None and set(ran) == {"reordered"}
    assert packed == [outcome.figures.timing.calls]  # once, for all inputs


@pytest.mark.parametrize("can_capture", [True, False])
def test_implementation_that_cannot_be_captured_is_launched_from_python(monkeypatch, can_capture):
    asked = []

    def time_calls(function, inputs, device, **options):
        asked.append(options["graph"])
        return Timing(samples_s=(1.0,), calls=1, warmups=1)

    monkeypatch.setattr(bench, "time_calls", time_calls)
    monkeypatch.setitem(route.implementations, "other", None)
    route.implementation("other", needs=anywhere, can_capture=can_capture)(lambda operands: None)
    measured(route, ms=(1,), implementations=("other",))
    assert asked == [can_capture]


def test_fault_while_drawing_arguments_is_an_outcome_and_the_rest_is_measured(monkeypatch):
    drawn = iter([RuntimeError("CUDA error"), None])

    def draw(workload, device):
        if (error := next(drawn)) is not None:
            raise error
        return [workload.part.draw()]

    monkeypatch.setattr(bench, "draw_inputs", draw)
    first, second = measured(rms_norm)
    assert first.failed and first.why == "failed: RuntimeError: CUDA error" and second.figures is not None


def test_workloads_after_a_device_failure_are_listed_as_not_run(monkeypatch):
    def broken(*args):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(rms_norm, "implementations", dict(rms_norm.implementations))
    monkeypatch.setattr(bench, "has_failed", lambda device: True)
    monkeypatch.setattr(bench, "choose", lambda op, device, wanted: [op.implementations["broken"], *reference(op)])
    rms_norm.implementation("broken", needs=anywhere)(broken)
    outcomes = measured(rms_norm)
    assert [(outcome.m, outcome.implementation, outcome.failed) for outcome in outcomes] == [
        (1, "broken", True),
        (1, "reference", False),
        (3, "broken", False),
        (3, "reference", False),
    ]
    assert {outcome.why for outcome in outcomes[1:]} == {
        "not run: the device failed earlier in rms_norm broken M=1"
    }


def reference(op):
    return [op.implementations["reference"]]


@pytest.mark.gpu
def test_peak_memory_is_measured_per_workload():
    gpu = find_device("cuda")
    held = torch.empty(1 << 28, device="cuda")
    del held
    (outcome,) = measured(rms_norm, device=gpu, ms=(1,))
    assert 0 < outcome.figures.peak_memory_bytes < 1 << 29


@pytest.mark.gpu
def test_triton_is_measured_with_a_cold_cache_on_a_gpu(monkeypatch):
    gpu = find_device("cuda")
    monkeypatch.setattr(bench, "find_cache_bytes", lambda device: device.l2_bytes)
    asked = {"ms": (1, 64), "activations": ("bf16", "mxfp8"), "implementations": ("triton",)}
    outcomes = measured(rms_norm, moe_matmul, device=gpu, **asked)
    assert {outcome.implementation for outcome in outcomes} == {"triton", "triton:gemv", "triton:gemm"}
    assert all(outcome.figures is not None and not outcome.failed for outcome in outcomes), outcomes
    assert torch.cuda.memory_allocated() < 1 << 30
