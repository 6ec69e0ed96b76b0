import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.formats import mxfp4

TABLE = [Fraction(v) / 2 for v in (0, 1, 2, 3, 4, 6, 8, 12)]
# every byte under every scale: [256, 256] codes, 16 bytes to a scale
EVERY_CODE = torch.arange(256, dtype=torch.uint8).expand(256, 256)
EVERY_SCALE = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16)
FORMAT_LETTER = {torch.float32: "f", torch.float16: "e", torch.float64: "d"}


def rounded_bits(value, sign, dtype):
    """Returns the bits of a non-negative Fraction with a sign, rounded by struct (or cut from its float32)."""
    if dtype == torch.bfloat16:
        bits = rounded_bits(value, sign, torch.float32)
        assert bits & 0xFFFF == 0
        return bits >> 16
    letter = FORMAT_LETTER[dtype]
    number = -float(value) if sign else float(value)
    try:
        packed = struct.pack("<" + letter, number)
    except OverflowError:
        packed = struct.pack("<" + letter, math.copysign(math.inf, number))
    return int.from_bytes(packed, "little")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_every_code_under_every_scale_is_exact(dtype):
    actual = mxfp4.dequantize(EVERY_CODE, EVERY_SCALE, dtype)
    assert actual.shape == (256, 512)
    assert actual.dtype == dtype
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    mask = 2 ** (8 * dtype.itemsize) - 1
    for scale in range(255):
        unit = Fraction(2) ** (scale - 127)
        nibbles = [rounded_bits(TABLE[code & 7] * unit, code >> 3, dtype) for code in range(16)]
        expected = [nibbles[n] for byte in range(256) for n in (byte & 15, byte >> 4)]
        assert [bits & mask for bits in actual[scale].view(integer).tolist()] == expected, f"scale {scale}"


def test_nan_scale_gives_nan_for_its_group_alone():
    scales = torch.tensor([127, 255, 127], dtype=torch.uint8)
    values = mxfp4.dequantize(torch.zeros(48, dtype=torch.uint8), scales)
    assert values.isnan().tolist() == [False] * 32 + [True] * 32 + [False] * 32


def test_low_nibble_is_the_even_element():
    x = torch.tensor([6.0, -0.5] + [0.0] * 30)
    codes, scales = mxfp4.quantize(x)
    assert codes.tolist() == [0x97] + [0] * 15
    assert scales.tolist() == [127]
    assert torch.equal(mxfp4.dequantize(codes, scales), x)


def test_a_gpt_oss_row_is_quantised_by_the_ocp_rule():
    # max 7 -> exponent 2 - 2 = 0; 7 saturates; 2.5 and 5 tie to even
    x = torch.tensor([7.0, 2.5, 5.0, -1.75] + [0.2] * 28)
    codes, scales = mxfp4.quantize(x)
    assert scales.tolist() == [127]
    assert mxfp4.dequantize(codes, scales).tolist() == [6.0, 2.0, 4.0, -2.0] + [0.0] * 28


def test_mse_rule_avoids_saturation_where_it_costs_more():
    x = torch.tensor([7.9] * 32)
    errors = {rule: (mxfp4.dequantize(*mxfp4.quantize(x, rule)) - x).abs().max().item() for rule in ("ocp", "mse")}
    assert errors["ocp"] == pytest.approx(1.9)
    assert errors["mse"] == pytest.approx(0.1, abs=1e-5)


@settings(max_examples=40, deadline=None, database=None)
@given(leading=st.lists(st.integers(0, 3), max_size=3), groups=st.integers(0, 4), seed=st.integers(0, 999))
def test_pack_and_unpack_are_inverse_in_any_shape(leading, groups, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (*leading, groups * 16), dtype=torch.uint8, generator=generator)
    unpacked = mxfp4.unpack(codes)
    assert unpacked.shape == (*leading, groups * 32)
    assert torch.equal(mxfp4.pack(unpacked), codes)
    scales = torch.full((*leading, groups), 127, dtype=torch.uint8)
    assert mxfp4.dequantize(codes, scales).shape == unpacked.shape


def test_pack_refuses_half_a_byte():
    with pytest.raises(ValueError, match="K = 3 is odd"):
        mxfp4.pack(torch.zeros(2, 3, dtype=torch.uint8))


def test_strided_codes_equal_contiguous_codes():
    codes, scales = EVERY_CODE.t()[:, :64], EVERY_SCALE[:, ::4]
    expected = mxfp4.dequantize(codes.contiguous(), scales.contiguous())
    assert torch.equal(mxfp4.dequantize(codes, scales).nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        ((2, 32), (2, 1)),
        ((2, 32), (2, 3)),
        ((2, 32), (3, 2)),
        ((32,), (1, 2)),
        ((16,), ()),
        ((), (1,)),
        ((17,), (1,)),
    ],
)
def test_mismatched_shapes_are_an_error(codes, scales):
    with pytest.raises(ValueError, match="disagree: one scale covers 16 bytes"):
        mxfp4.dequantize(torch.zeros(codes, dtype=torch.uint8), torch.zeros(scales, dtype=torch.uint8))


def test_codes_of_another_dtype_are_an_error():
    with pytest.raises(TypeError, match="int32"):
        mxfp4.dequantize(torch.zeros(16, dtype=torch.int32), torch.zeros(1, dtype=torch.uint8))


def test_integer_output_is_an_error():
    with pytest.raises(TypeError, match=r"not torch\.int8"):
        mxfp4.dequantize(torch.zeros(16, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8), torch.int8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_cuda_equals_cpu_and_dequantize_does_not_synchronise(forbid_waiting):
    codes, scales = EVERY_CODE.cuda(), EVERY_SCALE.cuda()
    expected = mxfp4.dequantize(EVERY_CODE, EVERY_SCALE)
    mxfp4.dequantize(codes, scales)
    with forbid_waiting():
        actual = mxfp4.dequantize(codes, scales)
    assert torch.equal(actual[:255].cpu().view(torch.int32), expected[:255].view(torch.int32))
    assert actual[255].isnan().all()
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    x *= 2.0 ** torch.arange(-140, 116, 4)[:, None]
    for rule in ("ocp", "mse"):
        for on_gpu, on_cpu in zip(mxfp4.quantize(x.cuda(), rule), mxfp4.quantize(x, rule), strict=True):
            assert torch.equal(on_gpu.cpu(), on_cpu)
