"""Experts by kernel libraries: calls are refused by order, activation and tile; sets of weights are packed once."""

import importlib
from dataclasses import replace

import pytest
import torch

from firesteel.kernels.libraries.flashinfer_experts import FlashinferExperts
from firesteel.kernels.libraries.flashinfer_moe import KINDS
from firesteel.kernels.libraries.orders import EXPERT_ORDERS, name_order
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.ops import moe_library
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands

moe_module = importlib.import_module("firesteel.kernels.ops.moe_matmul")  # the package has the op by this name


def draw(kind=None, activation="bf16"):
    experts = random_experts(4, 96, 160, torch.Generator().manual_seed(1))
    return MoeMatmulOperands(
        x=torch.zeros(2, 96, dtype=torch.bfloat16),
        ids=torch.zeros(2, 2, dtype=torch.int64),
        weights=torch.zeros(2, 2),
        experts=experts if kind is None else FlashinferExperts.pack(experts, kind),
        limit=7.0,
        activation=activation,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_kind_takes_its_own_order_and_activation(kind):
    accepts = moe_matmul.implementations[f"flashinfer:{kind}"].accepts
    activation = "mxfp8" if kind == "mxfp8" else "bf16"
    assert accepts(draw(kind, activation)) is None
    assert f"the order of flashinfer:{kind}, not in that of the checkpoint" in accepts(draw(None, activation))
    other = next(other for other in KINDS if other != kind)
    assert f"not in that of flashinfer:{other}" in accepts(draw(other, activation))
    assert "is for" in accepts(draw(kind, "mxfp4"))
    assert "pinned" in accepts(replace(draw(kind, activation), tile="128x64"))


def test_our_kernels_refuse_the_order_of_a_library():
    for name in ("triton:gemm", "cuda:stream", "cuda:wgmma"):
        assert "in the checkpoint's order" in moe_matmul.implementations[name].accepts(draw("bf16"))
    assert "of triton_kernels, not in that of flashinfer:bf16" in moe_library.refuse(draw("bf16"))


def test_variants_that_round_more_have_a_tolerance_of_their_own():
    own = {name: way.tolerance for name, way in moe_matmul.implementations.items() if way.tolerance is not None}
    assert (
        set(own) == {"cuda:wgmma_fp8", *(f"flashinfer:{kind}" for kind in KINDS)}
        and "E4M3" in own["flashinfer:fp8"].why
    )
    assert moe_matmul.tolerance.rms < own["flashinfer:bf16"].rms < own["flashinfer:fp8"].rms


def round_up(x, activation):
    """Rounds to MXFP8 as FlashInfer does: no value of a group is beyond 448, the largest of E4M3."""
    groups = x.unflatten(-1, (-1, 32))
    scales = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True) / 448)))
    return ((groups / scales).to(torch.float8_e4m3fn).float() * scales).flatten(-2)


def test_scales_that_are_rounded_up_are_within_the_tolerance_of_mxfp8_only(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 256, generator=generator).bfloat16()
    operands = replace(
        draw(activation="mxfp8"),
        x=x,
        ids=torch.stack([torch.arange(64) % 4, (torch.arange(64) + 1) % 4], dim=1),
        weights=torch.full((64, 2), 0.5),
        experts=random_experts(4, 256, 256, generator),
    )
    expected = moe_matmul.reference(operands)
    monkeypatch.setattr(moe_module, "round_activation", round_up)
    actual = moe_matmul.reference(operands)
    assert_close(actual=actual, expected=expected, tolerance=moe_library.TOLERANCES["mxfp8"])
    with pytest.raises(AssertionError, match="rms"):
        assert_close(actual=actual, expected=expected, tolerance=moe_matmul.tolerance)


def test_every_library_implementation_has_an_order():
    packing = {name for name, way in moe_matmul.implementations.items() if way.pack is not None}
    assert packing == set(EXPERT_ORDERS)
    assert not packing & set(moe_matmul.order)


def test_experts_that_calls_share_are_packed_once():
    operands = draw()
    (first,), (second,) = moe_library.reorder("flashinfer:bf16")([(operands,), (operands,)])
    assert first.experts is second.experts and name_order(first.experts) == "flashinfer:bf16"


@pytest.mark.parametrize("kind", ["bf16", "mxfp8"])
def test_reference_computes_the_same_from_experts_in_another_order(kind):
    operands = replace(draw(), x=torch.randn(2, 96, generator=torch.Generator().manual_seed(2)))
    packed = replace(operands, experts=FlashinferExperts.pack(operands.experts, kind))
    assert torch.equal(moe_matmul.reference(operands), moe_matmul.reference(packed))


def test_run_calls_the_library_of_the_order(monkeypatch):
    monkeypatch.setattr(moe_library.flashinfer_moe, "run", lambda *args: ("flashinfer", args[4:]))
    assert moe_library.run(draw("bf16"), 1.702) == ("flashinfer", (1.702, 7.0))
