import math
import struct
from fractions import Fraction

import pytest
import torch

from firesteel.formats import e8m0

EVERY = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_every_byte_decodes_to_its_power_of_two(dtype):
    actual = e8m0.decode(EVERY, dtype)
    assert actual.dtype == dtype
    assert [Fraction(v) for v in actual[:255].tolist()] == [Fraction(2) ** (b - 127) for b in range(255)]
    assert actual[255].isnan()


def test_encode_inverts_decode():
    assert torch.equal(e8m0.encode(e8m0.decode(EVERY)), EVERY)


def test_encode_takes_the_power_of_two_at_or_below():
    powers = e8m0.decode(EVERY[1:255])
    infinity = torch.tensor(math.inf)
    assert torch.equal(e8m0.encode(torch.nextafter(powers, infinity)), EVERY[1:255])
    assert torch.equal(e8m0.encode(torch.nextafter(powers, -infinity)), EVERY[0:254])


def test_encode_clamps_to_the_smallest_scale():
    (smallest,) = struct.unpack("<f", struct.pack("<I", 1))
    assert e8m0.encode(torch.tensor([smallest, 2.0**-128])).tolist() == [0, 0]


@pytest.mark.parametrize("bad", [0.0, -0.0, -1.0, math.inf])
def test_encode_refuses_zero_negative_and_infinite_values(bad):
    with pytest.raises(ValueError, match="only: 1 are zero, negative or infinite"):
        e8m0.encode(torch.tensor([1.0, bad]))


def test_encode_refuses_other_dtypes():
    with pytest.raises(TypeError, match="float64"):
        e8m0.encode(torch.ones(1, dtype=torch.float64))


def test_check_counts_nan_scales_and_points_at_the_first():
    scales = torch.full((2, 3, 4), 127, dtype=torch.uint8)
    e8m0.check(scales)
    scales[0, 2, 1] = scales[1, 0, 0] = 255
    with pytest.raises(ValueError, match=r"2 of 24 e8m0 scales are NaN \(255\), the first at \(0, 2, 1\)"):
        e8m0.check(scales)


def test_check_accepts_every_finite_scale_and_none():
    e8m0.check(EVERY[:255])
    e8m0.check(EVERY[:0])
