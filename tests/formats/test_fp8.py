"""FP8 with one scale per row."""

import torch

from firesteel.formats import e4m3, fp8


def test_the_largest_value_of_a_row_is_the_largest_code():
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    codes, scales = fp8.quantize(x)
    assert torch.equal(e4m3.decode(codes).abs().amax(-1), torch.full((5,), e4m3.LARGEST))
    torch.testing.assert_close(scales * e4m3.LARGEST, x.abs().amax(-1, keepdim=True))


def test_values_are_off_by_at_most_half_a_step():
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(1))
    codes, scales = fp8.quantize(x)
    error = (fp8.dequantize(codes, scales) - x).abs()
    assert (error <= torch.maximum(x.abs() * 2.0**-4, scales * 2.0**-10) * 1.001).all()
    assert 0.02 < error.norm() / x.norm() < 0.03


def test_rows_of_zeros_stay_zeros_and_tiny_values_vanish():
    codes, scales = fp8.quantize(torch.tensor([[0.0, -0.0], [2.0**-120, -(2.0**-126)]]))
    assert fp8.dequantize(codes, scales).eq(0).all() and scales.isfinite().all()


def test_rows_that_are_not_finite_are_nan_and_others_are_not():
    x = torch.tensor([[1.0, torch.inf], [1.0, 2.0], [torch.nan, 3.0], [-torch.inf, 0.0]])
    is_nan = fp8.dequantize(*fp8.quantize(x)).isnan()
    assert is_nan.all(dim=1).tolist() == [True, False, True, True] and not is_nan[1].any()


def test_the_inverse_of_the_scale_is_rounded_once():
    """Rounded twice, 448 / 3.0625 is smaller by a bit, and values between two codes become the lower one."""
    codes, _ = fp8.quantize(torch.tensor([[3.0625, 0.68359375]]))
    assert e4m3.decode(codes).tolist() == [[448.0, 104.0]]
