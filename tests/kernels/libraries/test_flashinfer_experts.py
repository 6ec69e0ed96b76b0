"""Experts in FlashInfer's order: up before gate, padded, restored bit for bit; folded scales keep every value."""

import warnings
from dataclasses import fields, replace

import pytest
import torch

from firesteel.formats import mxfp4
from firesteel.kernels.libraries import flashinfer
from firesteel.kernels.libraries.flashinfer_experts import (
    AT_ONCE,
    FlashinferExperts,
    fold_scales,
    make_rewrites,
    unfold_scales,
)
from firesteel.kernels.libraries.flashinfer_order import restore_codes
from firesteel.kernels.libraries.package import find_flashinfer
from firesteel.kernels.operands.weights import random_experts

SIZES = [(3, 96, 160), (AT_ONCE + 1, 160, 96), (2, 288, 128)]


def draw(*sizes):
    return random_experts(*sizes, torch.Generator().manual_seed(1))


def without_negative_zero(codes):
    low, high = (torch.where(part == 8, 0, part) for part in (codes & 15, codes >> 4))
    return low | high << 4


@pytest.mark.parametrize("kind", ["bf16", "fp8", "mxfp8"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_unpacking_restores_every_bit(sizes, kind):
    experts = draw(*sizes)
    restored = FlashinferExperts.pack(experts, kind).unpack()
    for part in fields(experts):
        before, after = getattr(experts, part.name), getattr(restored, part.name)
        if kind == "fp8" and part.name.endswith("codes"):
            before = without_negative_zero(before)
        assert before.dtype == after.dtype and after.is_contiguous() and torch.equal(before, after), part.name


@pytest.mark.parametrize("kind", ["bf16", "fp8", "mxfp8"])
def test_sizes_are_padded_to_128(kind):
    packed = FlashinferExperts.pack(draw(3, 96, 160), kind)
    assert packed.gate_up_values.shape == (3, 512, 64) and packed.down_values.shape == (3, 128, 128)
    assert packed.gate_up_bias.shape == (3, 512) and packed.down_bias.shape == (3, 128)
    assert packed.padded_hidden == 128 and (packed.hidden, packed.inter) == (96, 160)
    assert (packed.gate_up_residual is not None) == (kind == "fp8")
    held = [getattr(packed, part.name) for part in fields(packed)]
    assert packed.expert_bytes * 3 == sum(part.nbytes for part in held if isinstance(part, torch.Tensor))


def test_rows_of_up_stand_before_those_of_gate():
    experts = draw(1, 128, 64)
    packed = FlashinferExperts.pack(experts, "mxfp8")
    assert torch.equal(packed.gate_up_values[0, :64], experts.gate_up_codes[0, 1::2])
    assert torch.equal(packed.gate_up_values[0, 128:192], experts.gate_up_codes[0, ::2])
    assert torch.equal(packed.gate_up_bias[0, 128:192], experts.gate_up_bias[0, ::2])
    assert not packed.gate_up_values[0, 64:128].any() and not packed.gate_up_bias[0, 192:].any()


def test_padding_holds_zeros_in_the_library_s_order():
    packed = FlashinferExperts.pack(draw(1, 96, 160), "bf16")
    assert not restore_codes(packed.down_values, "bf16")[0, 96:].any()


@pytest.mark.parametrize("least", [0, 100, 240])
def test_folded_scales_keep_every_value(least):
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(256, (2, 8, 32), dtype=torch.uint8, generator=generator)
    scales = torch.randint(least, least + 12, (2, 8, 2), dtype=torch.uint8, generator=generator)
    rewritten, offsets, residual = fold_scales(codes, scales)
    assert offsets.min() >= 1 and offsets.max() <= 12
    assert torch.equal(rewritten, without_negative_zero(codes))
    assert torch.equal(unfold_scales(offsets, residual), scales)


def test_scales_far_below_the_largest_are_raised_and_their_codes_rounded():
    codes = torch.tensor([[[0x76] * 16, [0x76] * 16]], dtype=torch.uint8)  # 4 and 6
    scales = torch.tensor([[[127], [127 - 13]]], dtype=torch.uint8)
    rewritten, offsets, residual = fold_scales(codes, scales)
    values = mxfp4.dequantize(rewritten, unfold_scales(offsets, residual))
    assert values[0, 0, :2].tolist() == [4.0, 6.0]
    assert values[0, 1, :2].tolist() == [1.0 * 2**-11, 1.5 * 2**-11]  # 4 and 6, over 4
    assert offsets[0, :, 0].tolist() == [12, 1] and residual.item() == 2.0**-11 * 32


def test_values_too_small_for_any_code_become_zero():
    assert make_rewrites()[5].eq(0).all() and make_rewrites()[4].tolist()[:8] == [0, 0, 0, 0, 0, 0, 1, 1]


@pytest.mark.peer
def test_folding_is_the_library_s_where_that_is_right():
    """Its table takes the sign for an exponent bit if a scale is raised by more than 126."""
    if find_flashinfer() is None:
        pytest.skip("the package flashinfer is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flashinfer.import_flashinfer()
        from flashinfer.fused_moe.prepare import _humming_mxfp4_w4a8_rewrite_lut_cpu as make_table

    table, ours = make_table(), make_rewrites()
    for raised_by in (0, 1, 2, 3, 4, 5, 60, 126):
        theirs = torch.where(table[raised_by] == 8, 0, table[raised_by])
        assert torch.equal(theirs, ours[min(raised_by, 5)]), raised_by
    assert table[128].eq(torch.tensor([0, 8])[:, None]).any(0).logical_not().any()


def test_layers_of_another_order_are_described_for_the_choice_of_an_implementation():
    packed = FlashinferExperts.pack(draw(2, 128, 128), "bf16")
    assert (
        packed.describe()
        == replace(packed).describe()
        != FlashinferExperts.pack(draw(2, 128, 128), "fp8").describe()
    )
