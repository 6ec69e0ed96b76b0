"""The expert MLP by triton_kernels: what it refuses, and how the library is called."""

from dataclasses import replace

import pytest
import torch

from firesteel.kernels.libraries import triton_kernels_moe as moe
from firesteel.kernels.libraries.hopper_experts import HopperExperts
from firesteel.kernels.operands.weights import random_experts
from tests.kernels.libraries.stand_in import make_library, use_stand_in


def draw(tokens=3, hidden=256, inter=160, active=2):
    experts = random_experts(4, hidden, inter, torch.Generator().manual_seed(1))
    x = torch.zeros(tokens, hidden, dtype=torch.bfloat16)
    return (
        x,
        torch.zeros(tokens, active, dtype=torch.int64),
        torch.zeros(tokens, active),
        HopperExperts.pack(experts),
    )


def test_operands_that_the_library_cannot_take_are_refused(monkeypatch):
    use_stand_in(monkeypatch)
    x, ids, weights, experts = draw()
    assert moe.refuse(x, ids, weights, experts) is None
    assert "bf16 tokens" in moe.refuse(x.float(), ids, weights, experts)
    assert "fp32 weights" in moe.refuse(x, ids, weights.bfloat16(), experts)
    assert "1 to 32768 tokens, not 0" in moe.refuse(x[:0], ids[:0], weights[:0], experts)
    assert "rows in each matmul, not 320 and 160" in moe.refuse(x, ids, weights, replace(experts, hidden=160))
    assert "rows in each matmul, not 192 and 256" in moe.refuse(x, ids, weights, replace(experts, inter=96))
    assert "a power of two" in moe.refuse(x, ids.repeat(1, 3)[:, :3].contiguous(), weights, experts)
    assert "contiguous" in moe.refuse(x.mT.contiguous().mT, ids, weights, experts)


def test_both_matmuls_get_their_biases_and_the_second_weighs_and_sums(monkeypatch):
    calls = []

    def matmul(x, weight, bias, data, *, y, **options):
        calls.append((tuple(x.shape), weight.shape, bias, tuple(y.shape), options))
        y.fill_(len(calls))

    use_stand_in(monkeypatch, make_library(matmul))
    x, ids, weights, experts = draw()
    y = moe.run(x, ids, weights, experts, 1.702, 7.0)
    assert y.shape == x.shape and bool((y == 2).all())
    (up_x, up, up_bias, inner, first), (down_x, down, down_bias, _, second) = calls
    assert (up_x, up, inner) == ((3, 256), [4, 256, 320], (1, 6, 160)) and up_bias is experts.gate_up_bias
    assert (down_x, down) == ((6, 160), [4, 160, 256]) and down_bias is experts.down_bias
    assert first["gather_indx"] == "gather" and first["fused_activation"][1:] == ((1.702, 7.0), 2)
    assert second["scatter_indx"] == "scatter" and second["gammas"] == "weights by expert"
    assert "gammas" not in first and "fused_activation" not in second


def test_nothing_is_launched_while_kernels_are_compiled_ahead(monkeypatch):
    use_stand_in(monkeypatch, make_library(pytest.fail))
    monkeypatch.setattr(moe, "current_ahead", lambda: "ahead")
    x, ids, weights, experts = draw()
    assert moe.run(x, ids, weights, experts, 1.702, 7.0).shape == x.shape
