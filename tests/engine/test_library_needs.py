"""Experts are held once, in the order that moe_matmul reads; CUDA graphs are refused where they cannot be made."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from firesteel.config import resolve
from firesteel.device import find_device
from firesteel.engine import library_needs
from firesteel.engine.library_needs import (
    check_capture,
    check_dense_order,
    check_expert_order,
    experts_bytes,
    order_experts,
)
from firesteel.errors import UserError
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.linear import linear
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from tests.measure.ops.small_model import TINY


def chosen(name):
    return SimpleNamespace(moe_matmul=SimpleNamespace(candidates=[SimpleNamespace(name=name)]))


@pytest.mark.parametrize("name", ["triton_kernels", "flashinfer:bf16", "flashinfer:fp8", "flashinfer:mxfp8"])
def test_a_second_copy_of_the_experts_is_refused_with_its_size(name):
    spec = PRESETS["gpt-oss-120b"]
    with pytest.raises(UserError, match=rf"second copy would take 56\.8 GiB.*moe_matmul={name}$"):
        check_expert_order(spec, chosen(name), is_fused=True)
    check_expert_order(spec, chosen(name), is_fused=False)
    check_expert_order(spec, chosen("cuda:stream"), is_fused=True)


def test_size_is_that_of_the_experts_as_loaded():
    weights = synthetic_weights(TINY, find_device("cpu"), seed=1)
    held = sum(layer.experts.expert_bytes * TINY.num_experts for layer in weights.layers)
    assert experts_bytes(TINY) == held > 0


def test_experts_of_every_layer_are_reordered_one_layer_at_a_time(monkeypatch):
    weights = synthetic_weights(TINY, find_device("cpu"), seed=1)
    before = [layer.experts for layer in weights.layers]
    held = []

    def pack(experts):
        held.append(sum(isinstance(layer.experts, Experts) for layer in weights.layers))
        return "reordered", experts

    monkeypatch.setitem(library_needs.EXPERT_ORDERS, "triton_kernels", pack)
    order_experts(weights, chosen("triton:gemm"))
    assert [layer.experts for layer in weights.layers] == before
    order_experts(weights, chosen("triton_kernels"))
    assert [layer.experts for layer in weights.layers] == [("reordered", experts) for experts in before]
    assert held == list(range(len(before), 0, -1))
    order_experts(weights, chosen("triton_kernels"))  # already done
    assert len(held) == len(before)


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_library_that_plans_on_the_host_is_refused_with_cuda_graphs(cuda_graphs):
    gpu = replace(find_device("cpu"), capability=(9, 0), name="GPU")
    config = resolve({"cuda_graphs": cuda_graphs}).config.kernels

    def check(name, device):
        chosen = SimpleNamespace(attention=SimpleNamespace(candidates=[attention.implementations[name]]))
        check_capture(chosen, config, device)

    check("triton:decode", gpu)
    check("flashinfer:fa3", find_device("cpu"))
    if cuda_graphs:
        with pytest.raises(UserError, match=r"flashinfer:fa3 reads lengths on the host.*--enforce-eager"):
            check("flashinfer:fa3", gpu)
    else:
        check("flashinfer:fa3", gpu)


def test_dense_weights_in_the_order_of_a_library_are_refused():
    def check(name):
        check_dense_order(SimpleNamespace(linear=SimpleNamespace(candidates=[linear.implementations[name]])))

    check("triton:gemm")
    with pytest.raises(
        UserError, match=r"order of its own.* one copy.*decoding steps.*bf16 weights or activations.*verify"
    ):
        check("flashinfer")
