import struct
from fractions import Fraction

import pytest
import torch

from firesteel.formats import mxfp8

EVERY_CODE = torch.arange(256, dtype=torch.uint8).expand(256, 256)
EVERY_SCALE = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 8)


def magnitude(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 0:
        return Fraction(mantissa, 8) / 64
    return (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)


def float32_bits(value, sign):
    infinity = 0x7F800000
    bits = infinity if value >= 2**128 else int.from_bytes(struct.pack("<f", float(value)), "little")
    return bits | sign << 31


def test_every_code_under_every_scale_is_exact():
    actual = mxfp8.dequantize(EVERY_CODE, EVERY_SCALE)
    finite = [code for code in range(256) if code & 0x7F != 0x7F]
    for scale in range(255):
        unit = Fraction(2) ** (scale - 127)
        expected = [float32_bits(magnitude(code) * unit, code >> 7) for code in finite]
        bits = actual[scale].view(torch.int32)[finite].tolist()
        assert [b & 0xFFFFFFFF for b in bits] == expected, f"scale {scale}"
    assert actual[:, [0x7F, 0xFF]].isnan().all()
    assert actual[255].isnan().all()


def test_other_dtypes_round_the_exact_product_once():
    exact = mxfp8.dequantize(EVERY_CODE, EVERY_SCALE, torch.float64)
    assert exact[254, 0x7E].item() == 448 * 2.0**127
    for dtype in (torch.bfloat16, torch.float16):
        actual = mxfp8.dequantize(EVERY_CODE, EVERY_SCALE, dtype)
        assert actual.dtype == dtype
        assert torch.equal(actual.nan_to_num(nan=7.0), exact.to(dtype).nan_to_num(nan=7.0))


def test_quantize_writes_e4m3_bits_one_per_value():
    x = torch.tensor([[448.0, -1.0] + [0.0] * 30, [2.0**-20] * 32])
    codes, scales = mxfp8.quantize(x)
    assert codes.shape == (2, 32)
    assert scales.tolist() == [[127], [127 - 28]]
    assert codes[0, :3].tolist() == [0x7E, 0xB8, 0]
    assert torch.equal(mxfp8.dequantize(codes, scales), x)


def test_rule_is_chosen_by_name():
    x = torch.full((32,), 511.0)
    assert mxfp8.dequantize(*mxfp8.quantize(x))[0].item() == 448
    assert mxfp8.dequantize(*mxfp8.quantize(x, "mse"))[0].item() == 512
    with pytest.raises(ValueError, match="unknown scale rule 'x'"):
        mxfp8.quantize(x, "x")


def test_mismatched_shapes_are_an_error():
    with pytest.raises(ValueError, match="disagree: one scale covers 32 bytes"):
        mxfp8.dequantize(torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8))
