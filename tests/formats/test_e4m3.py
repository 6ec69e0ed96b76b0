import math

import torch

from firesteel.formats import e4m3

EVERY = torch.arange(256, dtype=torch.uint8)


def test_limits_are_those_of_e4m3fn():
    assert e4m3.decode(torch.tensor([0x7E, 0xFE, 0x08, 0x01], dtype=torch.uint8)).tolist() == [
        448.0,
        -448.0,
        2.0**-6,
        2.0**-9,
    ]
    assert EVERY[e4m3.decode(EVERY).isnan()].tolist() == [0x7F, 0xFF]


def test_decode_equals_the_element_table():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        actual, expected = e4m3.decode(EVERY, dtype), e4m3.E4M3.decode(EVERY, dtype)
        assert actual.dtype == dtype
        assert torch.equal(actual.nan_to_num(999.0), expected.nan_to_num(999.0))
        finite = ~expected.isnan()
        assert torch.equal(actual.signbit()[finite], expected.signbit()[finite])


def test_encode_equals_torch_in_the_finite_range():
    generator = torch.Generator().manual_seed(0)
    # float32 bit patterns of both signs from 2^-17 to 2^9, then all ties
    low, high = (torch.tensor(v).view(torch.int32).item() for v in (2.0**-17, 448.0))
    bits = torch.randint(low, high + 1, (200_000,), generator=generator, dtype=torch.int32)
    points = e4m3.decode(EVERY[:0x7F])
    x = torch.cat((bits.view(torch.float32), points, (points[1:] + points[:-1]) / 2))
    x = torch.cat((x, -x))
    assert torch.equal(e4m3.encode(x), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_encode_keeps_nan():
    assert e4m3.encode(torch.tensor([math.nan])).tolist() == [0x7F]
