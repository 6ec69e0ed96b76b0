"""Checks of ops at the shapes of a model: samples tried, samples skipped, wrong results."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.op.op import anywhere
from firesteel.kernels.operands.activation import ACTIVATIONS, is_native
from firesteel.kernels.operands.shapes import MOST_DECODED
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.moe_code import GEMV_TOKENS
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.moe_stream import MOST_TOKENS as STREAMED_TOKENS
from firesteel.kernels.ops.moe_stream import PAIRS
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.rope_kv_write import rope_kv_write
from firesteel.kernels.ops.route import route
from firesteel.kernels.proof.isolate import Died
from firesteel.kernels.proof.verify import Status
from firesteel.kernels.registry import ALL_OPS
from firesteel.kernels.tiles.launch import power_of_two
from firesteel.measure.ops import correctness
from firesteel.measure.ops.correctness import check_apart, check_ops, list_tokens
from firesteel.model.spec import PRESETS
from tests.measure.ops.small_model import CPU, TINY

SHAPES = correctness.ModelShapes
ELSEWHERE = ("torch", "triton_kernels", "flashinfer")  # on a CPU, or where a library is installed


@pytest.fixture
def moe(monkeypatch):
    """moe(function) makes it the only MoE implementation on a CPU, without the op's own samples."""

    def add(function, accepts=None):
        monkeypatch.setattr(moe_matmul, "make_samples", None)
        monkeypatch.setattr(moe_matmul, "implementations", {"reference": moe_matmul.implementations["reference"]})
        moe_matmul.implementation("mine", needs=anywhere, accepts=accepts)(function)

    return add


def run(**options):
    return list(check_ops((moe_matmul,), CPU, TINY, **options))


def test_real_shapes_are_tried_with_every_activation(moe):
    moe(moe_matmul.reference)
    checks = run()
    assert [check.sample for check in checks] == [
        f"M={m} {activation}" for activation in ("bf16", "mxfp8", "mxfp4", "fp8") for m in (1, 7, 64, 320)
    ]
    assert {check.status for check in checks} == {Status.PASSED}


@pytest.mark.parametrize(
    ("names", "ran"), [((), {"mine", "yours:a"}), (("yours",), {"yours:a"}), (("mine",), {"mine"})]
)
def test_names_limit_what_is_checked_and_what_is_listed_as_not_run(moe, names, ran):
    moe(moe_matmul.reference)
    moe_matmul.implementation("yours:a", needs=lambda device: "needs another GPU")(moe_matmul.reference)
    checks = run(quick=True, names=names)
    assert {check.implementation for check in checks} == ran
    assert {check.implementation for check in checks if check.not_run} == ran & {"yours:a"}


def test_quick_checks_the_smallest_sample_of_each_activation(moe):
    moe(moe_matmul.reference)
    assert [check.sample for check in run(quick=True)] == ["M=1 bf16", "M=1 mxfp8", "M=1 mxfp4", "M=1 fp8"]


def test_quick_shows_a_refusal_only_if_no_sample_was_accepted(moe):
    def refuse(operands):
        return None if operands.activation == "bf16" else f"no {operands.activation}"

    moe(moe_matmul.reference, accepts=refuse)
    checks = run(quick=True)
    assert [(check.status, check.why) for check in checks] == [
        (Status.PASSED, ""),
        (Status.REFUSED, "no mxfp8"),
        (Status.REFUSED, "no mxfp4"),
        (Status.REFUSED, "no fp8"),
    ]


def test_implementation_that_ignores_the_activation_fails(moe):
    moe(lambda operands: moe_matmul.reference(replace(operands, activation="bf16")))
    statuses = {check.sample: check.status for check in run(quick=True)}
    assert statuses["M=1 bf16"] is Status.PASSED
    assert statuses["M=1 mxfp8"] is statuses["M=1 mxfp4"] is Status.FAILED


def test_sample_that_does_not_fit_into_memory_is_reported(moe, monkeypatch):
    moe(moe_matmul.reference)
    monkeypatch.setattr(correctness, "too_large", lambda workload, device, share: "not run: needs 9 GB")
    assert {(check.status, check.implementation, check.why) for check in run()} == {
        (Status.NOT_RUN, "mine", "not run: needs 9 GB")
    }


def test_without_a_gpu_every_implementation_has_a_row_and_no_sample_is_made(monkeypatch):
    monkeypatch.setattr(correctness, "ModelShapes", None)
    steps = []
    checks = list(check_ops(ALL_OPS, CPU, TINY, progress=lambda done, total: steps.append((done, total))))
    wanted = {(op.name, name) for op in ALL_OPS for name in op.implementations if name != "reference"}
    assert {(check.op, check.implementation) for check in checks} == wanted and len(checks) == len(wanted)
    assert {check.status for check in checks} == {Status.NOT_RUN} and steps[-1] == (len(ALL_OPS), len(ALL_OPS))


def test_implementations_for_a_cpu_are_checked_if_they_are_named():
    checks = list(check_ops((route,), CPU, TINY, quick=True, names=("torch",)))
    assert {check.implementation for check in checks} == {"torch:invariant"}
    assert {check.status for check in checks} == {Status.PASSED}


def tile_pickers(spec, capability):
    """Yields (op, most tokens, function from tokens to tile) for every choice that depends on tokens."""
    from firesteel.kernels.triton import linear as dense
    from firesteel.kernels.triton import moe_matmul as experts
    from firesteel.kernels.triton import mxfp4_linear as packed
    from firesteel.kernels.triton.moe_sort import MAX_CHUNK
    from firesteel.kernels.triton.route import VECTOR_TOKENS

    active, natives = spec.num_active, {is_native(capability, activation) for activation in ACTIVATIONS}
    for rows, most in (
        (spec.q_size + 2 * spec.kv_size, 8192),
        (spec.hidden_size, 8192),
        (spec.vocab_size, MOST_DECODED),
    ):
        yield "linear", most, partial(dense.pick_tile, num_rows=rows)
        for native in natives:
            yield "linear", most, partial(packed.pick_tile, num_rows=rows, capability=capability, native=native)
    for native in natives:
        tiles = partial(experts.gemm_tiles, capability=capability, native=native)
        yield "moe_matmul", 8192, lambda m, tiles=tiles: tiles(m * active / spec.num_experts)
    yield "moe_matmul", GEMV_TOKENS, lambda m: experts.gemv_tiles(m * active)
    yield "moe_matmul", 8192, lambda m: min(MAX_CHUNK, max(16, power_of_two(m * active)))
    yield "moe_matmul", STREAMED_TOKENS, lambda m: next(count for count in PAIRS if m * active <= count)
    yield "route", 8192, lambda m: dense.pick_tile(m, spec.num_experts) if m > VECTOR_TOKENS else "vector"


@pytest.mark.parametrize("capability", [(9, 0), (12, 1)])
@pytest.mark.parametrize("model", ["gpt-oss-20b", "gpt-oss-120b"])
def test_every_tile_is_tried_on_a_gpu(model, capability):
    """Tiles of prompts never ran, because at most 320 tokens were tried."""
    gpu = replace(CPU, name="GPU", capability=capability)
    for op, most, pick in tile_pickers(PRESETS[model], capability):
        tried = {pick(m) for m in list_tokens(op, gpu) if m <= most}
        assert {pick(m) for m in range(1, most + 1)} == tried, op


def test_token_counts_of_gpu_tiles_are_skipped_on_a_cpu():
    assert list_tokens("moe_matmul", CPU) == (1, 7, 64, 320)


@pytest.mark.parametrize(
    ("op", "wanted"),
    [(linear, "T=1 5120x2880 mxfp4-weight bf16"), (rope_kv_write, "T=65 S=64 torch.float8_e4m3fn")],
)
def test_quick_checks_a_sample_of_every_set_of_types(monkeypatch, op, wanted):
    """MXFP4 weights with bf16 activations, and FP8 pages, were mistaken for samples already checked."""
    monkeypatch.setattr(op, "implementations", {"reference": op.implementations["reference"]})
    op.implementation("mine", needs=anywhere)(op.reference)
    checks = list(check_ops((op,), CPU, TINY, quick=True))
    assert wanted in [check.sample for check in checks] and {check.status for check in checks} == {Status.PASSED}


def test_experts_are_held_once(moe, monkeypatch):
    made = []
    monkeypatch.setattr(
        correctness, "ModelShapes", lambda *args, **options: made.append(options) or SHAPES(*args, **options)
    )
    moe(moe_matmul.reference)
    run(quick=True)
    assert made == [{"expert_copies": 1}]


def fail(*args, **options):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")


def test_fault_while_making_a_sample_is_a_row_and_the_rest_is_checked(moe, monkeypatch):
    draws = iter([fail])
    monkeypatch.setattr(correctness, "free_memory", lambda device: next(draws, lambda: None)())
    moe(moe_matmul.reference)
    first, *others = run(quick=True)
    assert (first.status, first.implementation, first.sample) == (Status.FAILED, "mine", "M=1 bf16")
    assert "illegal memory access" in first.why and {check.status for check in others} == {Status.PASSED}


def test_fault_in_the_samples_of_the_op_is_a_row(moe, monkeypatch):
    moe(moe_matmul.reference)
    monkeypatch.setattr(moe_matmul, "make_samples", fail)
    (row,) = run()
    assert row.status is Status.FAILED and row.sample == "making samples"


def test_samples_after_a_device_failure_are_listed_as_not_run(moe, monkeypatch):
    moe(fail)
    monkeypatch.setattr(correctness, "has_failed", lambda device: True)
    monkeypatch.setattr(rms_norm, "implementations", {"mine": moe_matmul.implementations["mine"]})
    failed, rest, other = check_ops((moe_matmul, rms_norm), CPU, TINY)
    assert failed.status is Status.FAILED and (rest.op, other.op) == ("moe_matmul", "rms_norm")
    assert rest.not_run == other.not_run == "the device failed earlier in moe_matmul mine M=1 bf16"


def test_lack_of_memory_is_not_a_failure(moe):
    def greedy(*args):
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    moe(greedy)
    assert {(check.status, check.why) for check in run()} == {
        (Status.NOT_RUN, "memory ran out: tried to allocate 9 GiB")
    }


def test_ops_are_checked_in_another_process():
    ops = (rms_norm, moe_matmul)
    assert list(check_apart(ops, CPU, TINY)) == list(check_ops(ops, CPU, TINY))


def test_op_that_kills_its_process_or_breaks_the_device_is_followed_by_a_new_process(monkeypatch):
    events = []

    class FakeWorker:
        def call(self, function, name, *rest):
            events.append(name)
            failed = correctness.Check(name, "triton", "", not_run=f"{correctness.DEVICE_FAILED} here")
            return Died("its process was ended by SIGABRT") if name == "rms_norm" else [failed]

        def stop(self):
            events.append("stop")

    monkeypatch.setattr(correctness, "Worker", FakeWorker)
    died, failed, _ = check_apart((rms_norm, linear, moe_matmul), CPU, TINY)
    assert died.status is Status.FAILED and died.why == "its process was ended by SIGABRT"
    assert failed.op == "linear" and events == ["rms_norm", "linear", "stop", "moe_matmul", "stop", "stop"]


@pytest.mark.gpu
@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
def test_every_op_is_correct_on_this_gpu_at_the_shapes_of_120b(op):
    checks = list(check_ops((op,), find_device("cuda"), PRESETS["gpt-oss-120b"]))
    failed = [f"{check.implementation} on {check.sample}: {check.why}" for check in checks if check.failure]
    assert not failed, "\n".join(failed)
    passed = {check.implementation for check in checks if check.status is Status.PASSED}
    elsewhere = {name for name in op.implementations if name.partition(":")[0] in ELSEWHERE}
    assert passed - elsewhere == set(op.implementations) - elsewhere - {"reference"}
    torch.cuda.empty_cache()
