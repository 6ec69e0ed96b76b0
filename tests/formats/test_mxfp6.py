import struct
from fractions import Fraction

import pytest
import torch

from firesteel.formats import mxfp6

# name: mantissa bits, bias
LAYOUT = {"e3m2": (2, 3), "e2m3": (3, 1)}
EVERY_CODE = torch.arange(64, dtype=torch.uint8).expand(256, 64)
EVERY_SCALE = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 2)


def magnitude(code, element):
    bits, bias = LAYOUT[element]
    exponent, mantissa = (code & 31) >> bits, Fraction(code % 2**bits, 2**bits)
    if exponent == 0:
        return mantissa * Fraction(2) ** (1 - bias)
    return (1 + mantissa) * Fraction(2) ** (exponent - bias)


def float32_bits(value, sign):
    infinity = 0x7F800000
    bits = infinity if value >= 2**128 else int.from_bytes(struct.pack("<f", float(value)), "little")
    return bits | sign << 31


@pytest.mark.parametrize("element", LAYOUT)
def test_every_code_under_every_scale_is_exact(element):
    actual = mxfp6.dequantize(EVERY_CODE, EVERY_SCALE, element)
    for scale in range(255):
        unit = Fraction(2) ** (scale - 127)
        expected = [float32_bits(magnitude(code, element) * unit, code >> 5) for code in range(64)]
        assert [b & 0xFFFFFFFF for b in actual[scale].view(torch.int32).tolist()] == expected, f"scale {scale}"
    assert actual[255].isnan().all()


@pytest.mark.parametrize(("element", "largest", "smallest"), [("e3m2", 28.0, 0.0625), ("e2m3", 7.5, 0.125)])
def test_limits_survive_a_round_trip(element, largest, smallest):
    x = torch.tensor([largest, -smallest] + [0.0] * 30)
    codes, scales = mxfp6.quantize(x, element)
    assert codes[:3].tolist() == [31, 33, 0]
    assert scales.tolist() == [127]
    assert torch.equal(mxfp6.dequantize(codes, scales, element), x)


def test_byte_wider_than_six_bits_is_nan():
    codes = torch.full((32,), 64, dtype=torch.uint8)
    assert mxfp6.dequantize(codes, torch.tensor([127], dtype=torch.uint8), "e3m2").isnan().all()


def test_unknown_element_is_an_error_that_lists_the_elements():
    with pytest.raises(ValueError, match="unknown mxfp6 element 'e1m4'; the elements are e3m2, e2m3"):
        mxfp6.quantize(torch.zeros(32), "e1m4")


def test_rule_is_chosen_by_name():
    x = torch.full((32,), 31.9)
    errors = [
        (mxfp6.dequantize(*mxfp6.quantize(x, "e3m2", rule), "e3m2") - x).abs().max() for rule in ("ocp", "mse")
    ]
    assert errors[1] < errors[0]


def test_mismatched_shapes_are_an_error():
    with pytest.raises(ValueError, match="disagree: one scale covers 32 bytes"):
        mxfp6.dequantize(torch.zeros(64, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8), "e2m3")
