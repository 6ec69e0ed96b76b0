"""Workloads of every op: shapes of the model, arithmetic, and draws that differ."""

import pytest
import torch

from firesteel.errors import KernelError
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.tolerance import fp32
from firesteel.kernels.operands.shapes import MOST_DECODED, ModelShapes
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.route import route
from firesteel.kernels.proof.verify import same_bits, tensors
from firesteel.kernels.registry import ALL_OPS
from firesteel.measure.ops.workloads import list_workloads
from firesteel.model.spec import PRESETS
from tests.measure.ops.small_model import CPU, TINY


def labels(op, m, activation="bf16", spec=TINY):
    return [workload.part.label for workload in list_workloads(op, m, activation, ModelShapes(spec, CPU))]


def test_every_op_has_workloads():
    assert [op.name for op in ALL_OPS if op.make_workloads is None] == []


def test_an_op_without_workloads_is_an_error_that_says_what_to_add():
    @define_op(bytes=lambda x: x.nbytes, tolerance=fp32(why="toy"))
    def bare(x):
        return x

    with pytest.raises(KernelError, match=r"bare has no workloads to measure: add @bare.workloads to its file"):
        list(list_workloads(bare, 1, "bf16", ModelShapes(TINY, CPU)))


@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("m", [1, 3, 65])
def test_reference_accepts_every_workload_and_draws_differ(op, m):
    for activation in ("bf16", "mxfp8", "mxfp4"):
        for workload in list_workloads(op, m, activation, ModelShapes(TINY, CPU)):
            first, second = workload.part.draw(), workload.part.draw()
            assert op.bytes(*first) > 0
            op.reference(*first)
            assert any(not same_bits(*pair) for pair in zip(tensors(first), tensors(second), strict=True))


def test_only_ops_that_round_activations_have_workloads_for_them():
    assert labels(route, 4, "bf16") == [""] and labels(route, 4, "mxfp8") == []
    assert labels(linear, 4, "mxfp8") == ["qkv mxfp4", "o mxfp4", "lm_head mxfp4"]
    (workload,) = list_workloads(moe_matmul, 4, "mxfp4", ModelShapes(TINY, CPU))
    assert workload.part.draw()[0].activation == "mxfp4" and workload.label == "M=4 mxfp4"


def test_decode_has_a_limit_of_requests_and_prefill_a_shortest_prompt():
    assert labels(attention, 1) == ["decode full 256", "decode window 256"]
    assert labels(attention, 64)[-2:] == ["prefill full", "prefill window"] and len(labels(attention, 64)) == 4
    assert labels(attention, 257) == ["decode full 256", "decode window 256"]  # no prompt beyond the context
    big = PRESETS["gpt-oss-120b"]
    assert labels(attention, MOST_DECODED + 1, spec=big) == ["prefill full", "prefill window"]
    assert labels(linear, MOST_DECODED + 1) == ["qkv bf16", "qkv mxfp4", "o bf16", "o mxfp4"]


def test_attention_counts_the_keys_each_query_sees():
    parts = {
        workload.part.label: workload.part
        for workload in list_workloads(attention, 64, "bf16", ModelShapes(TINY, CPU))
    }
    per_key = 4 * TINY.num_heads * TINY.head_dim
    assert parts["decode full 256"].flops == 64 * 256 * per_key
    assert parts["decode window 256"].flops == 64 * 8 * per_key
    assert parts["prefill full"].flops == sum(range(1, 65)) * per_key
    assert parts["prefill window"].flops == sum(min(seen, 8) for seen in range(1, 65)) * per_key


def test_window_decode_holds_only_the_pages_it_sees():
    parts = {
        workload.part.label: workload.part
        for workload in list_workloads(attention, 2, "bf16", ModelShapes(TINY, CPU))
    }
    full, window = parts["decode full 256"], parts["decode window 256"]
    assert window.held_bytes * 4 == full.held_bytes
    (operands,) = window.draw()
    assert operands.page_table.shape == (2, 4) and operands.q.shape == (2, 4, 32)
    assert operands.k_pages.shape[0] == 2 and operands.k_pages.nbytes * 2 == window.held_bytes


def test_moe_counts_three_matrices_per_expert_and_spreads_tokens():
    (workload,) = list_workloads(moe_matmul, 600, "bf16", ModelShapes(TINY, CPU))
    assert workload.part.flops == 2 * 600 * 2 * 3 * 96 * 64
    (operands,) = workload.part.draw()
    ids, weights = operands.ids, operands.weights
    counts = torch.bincount(ids.flatten(), minlength=6)
    assert counts.min() > 150 and counts.max() < 250  # of 200 each
    assert torch.allclose(weights.sum(-1), torch.ones(600)) and (ids[:, 0] != ids[:, 1]).all()


def test_consecutive_calls_read_different_experts():
    (workload,) = list_workloads(moe_matmul, 1, "bf16", ModelShapes(TINY, CPU))
    first, second, third = (workload.part.draw()[0].experts for _ in range(3))
    assert first is third and first.gate_up_codes.data_ptr() != second.gate_up_codes.data_ptr()


def test_experts_of_a_120b_layer_take_1700_megabytes():
    assert ModelShapes(PRESETS["gpt-oss-120b"], CPU).experts_bytes == pytest.approx(1.692e9, rel=1e-2)
