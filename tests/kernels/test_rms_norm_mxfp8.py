"""The fused norm and quantiser: the bits of rms_norm followed by quantize_mxfp8."""

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels import quantize_mxfp8, rms_norm, rms_norm_mxfp8
from firesteel.kernels.op import Sample
from firesteel.kernels.verify import same_bits

SAMPLES = list(rms_norm_mxfp8.make_samples(torch.device("cpu")))


def check_equal(fused, y, total, quantised):
    assert len(fused) == 4
    for one, other in zip(fused, (y, total, *quantised), strict=True):
        assert same_bits(one, other)


def test_interpreted_kernel_equals_the_two_kernels_to_the_bit(call_interpreted):
    normed = call_interpreted(rms_norm, "triton", SAMPLES[:4])
    quantised = call_interpreted(quantize_mxfp8, "triton", [Sample("y", (y,)) for y, _ in normed])
    fused = call_interpreted(rms_norm_mxfp8, "triton", SAMPLES[:4])
    for one, (y, total), pair in zip(fused, normed, quantised, strict=True):
        check_equal(one, y, total, pair)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 7, 64, 257, 4096])
def test_kernel_equals_the_two_kernels_to_the_bit_on_a_gpu(tokens):
    device = find_device("cuda").torch_device
    residual, update = torch.randn(2, tokens, 2880, device=device).bfloat16()
    args = (residual, update, torch.rand(2880, device=device).bfloat16(), 1e-5)
    y, total = rms_norm.implementations["triton"].function(*args)
    quantised = quantize_mxfp8.implementations["triton"].function(y)
    check_equal(rms_norm_mxfp8.implementations["triton"].function(*args), y, total, quantised)


def test_rows_without_whole_groups_are_refused():
    accepts = rms_norm_mxfp8.implementations["triton"].accepts
    assert accepts(*SAMPLES[0].args) is None
    x, weight = torch.zeros(2, 97).bfloat16(), torch.zeros(97).bfloat16()
    assert accepts(x, None, weight, 1e-5) == "wants rows of whole groups of 32, not 97"
    odd = torch.zeros(96, 2).bfloat16().T
    assert accepts(odd, None, weight[:96], 1e-5) == "wants rows whose values lie side by side"
