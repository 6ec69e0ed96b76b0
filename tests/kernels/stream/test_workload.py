"""Workloads of the decode ops: token limits, formats and arithmetic."""

import pytest

from firesteel.device import find_device
from firesteel.kernels.decode.attention import decode_attention
from firesteel.kernels.decode.fc1 import decode_fc1
from firesteel.kernels.decode.fc2 import decode_fc2
from firesteel.kernels.decode.qkv import decode_qkv
from firesteel.kernels.operands.shapes import ModelShapes
from firesteel.kernels.registry import DECODE_OPS
from firesteel.measure.ops.workloads import list_workloads
from firesteel.model.spec import PRESETS

CPU = find_device("cpu")
BIG = PRESETS["gpt-oss-120b"]


def parts(op, m, activation="bf16"):
    return [workload.part for workload in list_workloads(op, m, activation, ModelShapes(BIG, CPU))]


@pytest.mark.parametrize("op", DECODE_OPS, ids=lambda op: op.name)
def test_workloads_exist_for_up_to_eight_tokens(op):
    assert parts(op, 1) and parts(op, 8) and not parts(op, 9)


def test_dense_weights_come_in_both_formats():
    assert [part.label for part in parts(decode_qkv, 1)] == ["bf16", "mxfp4"]
    assert parts(decode_qkv, 3)[0].flops == 3 * 2 * 5120 * 2880


def test_activations_are_rounded_to_mxfp8_only_for_mxfp4_weights():
    assert [part.label for part in parts(decode_qkv, 1, "mxfp8")] == ["mxfp4"]
    assert len(parts(decode_fc2, 2, "mxfp8")) == 1 and not parts(decode_fc2, 2, "mxfp4")
    assert not parts(decode_attention, 1, "mxfp8")


def test_attention_covers_full_and_window_layers():
    flops = {part.label: part.flops for part in parts(decode_attention, 2)}
    assert flops == {"window 2048": 2 * 4 * 128 * 4096, "full 2048": 2 * 4 * 2048 * 4096}


def test_expert_matmuls_are_counted_separately():
    assert parts(decode_fc1, 1)[0].flops == 2 * parts(decode_fc2, 1)[0].flops == 4 * 4 * 2880 * 2880
