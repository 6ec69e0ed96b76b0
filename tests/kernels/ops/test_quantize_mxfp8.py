"""quantize_mxfp8's kernel gives the bits of the format."""

import pytest
import torch

from firesteel.device import find_device
from firesteel.formats import mxfp8
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.ops.quantize_mxfp8 import quantize_mxfp8, refuse_groups


def hard_rows():
    """Returns ties, saturation, largest and smallest numbers, signed zeros; the last two rows are not finite."""
    x = torch.zeros(9, 96)
    x[0], x[1, :32], x[1, 32:64] = torch.arange(96) / 32 - 1, 3e38, -1e-45
    x[2] = torch.arange(96) * 4.75 - 200
    x[3, ::2] = -0.0
    x[4], x[5] = torch.linspace(-(2.0**-120), 2.0**-120, 96), 2.0 ** torch.linspace(-126, 127, 96)
    x[6] = (torch.arange(96) + 0.5) * 2.0**-9
    x[7, 40], x[8, 95] = float("inf"), float("nan")
    return x


def check_hard_rows(codes, scales, x):
    expected = mxfp8.quantize(x[:7])
    assert torch.equal(codes[:7], expected[0]) and torch.equal(scales[:7], expected[1])
    assert scales[7].tolist() == [0, 255, 0] and scales[8].tolist() == [0, 0, 255]
    assert mxfp8.dequantize(codes[7:], scales[7:]).isnan().sum() == 64


def test_interpreted_kernel_rounds_hard_values_as_the_format_does(call_interpreted):
    x = hard_rows()
    ((codes, scales),) = call_interpreted(quantize_mxfp8, "triton", [Sample("hard", (x,))])
    check_hard_rows(codes, scales, x)


@pytest.mark.gpu
def test_kernel_rounds_hard_values_as_the_format_does_on_a_gpu():
    x = hard_rows().to(find_device("cuda").torch_device)
    check_hard_rows(*quantize_mxfp8.implementations["triton"].function(x), x)


def test_rows_without_whole_groups_are_refused_with_the_reason():
    accepts = quantize_mxfp8.implementations["triton"].accepts
    assert accepts(torch.zeros(2, 64)) is None
    assert (
        accepts(torch.zeros(2, 65))
        == refuse_groups(torch.zeros(2, 65))
        == ("wants rows of whole groups of 32, not 65")
    )
    assert accepts(torch.zeros(2, 64).double()) == "rounds bf16, fp16 and fp32, not torch.float64"
    assert accepts(torch.zeros(64, 2).T) == "wants rows whose values lie side by side"
