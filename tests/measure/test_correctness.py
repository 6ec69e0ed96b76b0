"""Every op at a model's shapes: which samples are tried, what is not, and that wrong answers fail."""

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels import ALL_OPS, moe_matmul
from firesteel.kernels.op import anywhere
from firesteel.kernels.rope import RopeSpec
from firesteel.kernels.verify import Status
from firesteel.measure import correctness
from firesteel.measure.correctness import check_ops
from firesteel.model.spec import PRESETS, ModelSpec

CPU = find_device("cpu")
TINY = ModelSpec(
    num_layers=2, hidden_size=96, intermediate_size=64, num_heads=4, num_kv_heads=2, head_dim=32, num_experts=6,
    num_active=2, vocab_size=272, windows=(8, None), rope=RopeSpec(theta=150000.0), max_context=256,
)  # fmt: skip


@pytest.fixture
def moe(monkeypatch):
    """moe(function) makes it the one implementation of the MoE that runs on a CPU; its own samples are left out."""

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
        f"M={m} {activation}" for activation in ("bf16", "mxfp8", "mxfp4") for m in (1, 7, 64, 320)
    ]
    assert {check.status for check in checks} == {Status.PASSED}


def test_quick_takes_the_smallest_of_each_activation(moe):
    moe(moe_matmul.reference)
    assert [check.sample for check in run(quick=True)] == ["M=1 bf16", "M=1 mxfp8", "M=1 mxfp4"]


def test_quick_shows_a_refusal_only_where_nothing_was_taken(moe):
    def refuse(x, ids, weights, experts, limit, activation="bf16", tile="auto"):
        return None if activation == "bf16" else f"no {activation}"

    moe(moe_matmul.reference, accepts=refuse)
    checks = run(quick=True)
    assert [(check.status, check.why) for check in checks] == [
        (Status.PASSED, ""), (Status.REFUSED, "no mxfp8"), (Status.REFUSED, "no mxfp4"),
    ]  # fmt: skip


def test_an_implementation_that_ignores_the_activation_fails(moe):
    moe(
        lambda x, ids, weights, experts, limit, activation="bf16": moe_matmul.reference(
            x, ids, weights, experts, limit
        )
    )
    statuses = {check.sample: check.status for check in run(quick=True)}
    assert statuses["M=1 bf16"] is Status.PASSED
    assert statuses["M=1 mxfp8"] is statuses["M=1 mxfp4"] is Status.FAILED


def test_what_memory_has_no_room_for_is_told(moe, monkeypatch):
    moe(moe_matmul.reference)
    monkeypatch.setattr(correctness, "too_large", lambda workload, device, share: "not run: needs 9 GB")
    assert {(check.status, check.implementation, check.why) for check in run()} == {
        (Status.NOT_RUN, "mine", "not run: needs 9 GB")
    }


def test_without_a_gpu_every_implementation_has_a_row_and_no_sample_is_made(monkeypatch):
    monkeypatch.setattr(correctness, "Shapes", None)
    steps = []
    checks = list(check_ops(ALL_OPS, CPU, TINY, progress=lambda done, total: steps.append((done, total))))
    wanted = [(op.name, name) for op in ALL_OPS for name in op.implementations if name != "reference"]
    assert [(check.op, check.implementation) for check in checks] == wanted
    assert {check.status for check in checks} == {Status.NOT_RUN} and steps[-1] == (len(ALL_OPS), len(ALL_OPS))


@pytest.mark.gpu
@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
def test_every_op_is_right_on_this_gpu_at_the_shapes_of_120b(op):
    checks = list(check_ops((op,), find_device("cuda"), PRESETS["gpt-oss-120b"]))
    failed = [f"{check.implementation} on {check.sample}: {check.why}" for check in checks if check.failure]
    assert not failed, "\n".join(failed)
    passed = {check.implementation for check in checks if check.status is Status.PASSED}
    assert passed == set(op.implementations) - {"reference"}
    torch.cuda.empty_cache()
