"""MXFP4 and MXFP8 in registers: weights widened exactly, activations rounded by the OCP rule; knows no matmul.

E2M1 codes put where a wider float keeps its exponent's low bits are that float times a power of two, subnormal 0.5
included: times 2^-126 in bf16 and fp32, times 2^-6 in E4M3. So no table is needed, and every product below is exact
as long as the result is in the wider type's range.

The columns of a group may be multiplied in any order, if both sides keep to it. `feed` puts them in one in which
what a lane feeds to the matrix unit comes from four adjacent bytes, their low nibbles first: no bytes to gather, no
nibbles to interleave. Weights are fed as they are widened, activations when they are stored.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from firesteel.kernels.triton.arithmetic import INTERPRETED, round_to, widen

GROUP = tl.constexpr(32)
E4M3_SHIFT = tl.constexpr(6)  # E2M1 bits read as E4M3 are 2^6 too small
# 4 bytes -> their low, then their high nibbles as bf16, two to a register, times the group's scale. The product
# with 2^126 comes first: it makes the value normal. fma, for mul.bf16x2 does not exist before sm_90.
_TO_BF16 = tl.constexpr(
    """{
    .reg .b32 a, b, c, d, e, f;
    prmt.b32 a, $4, 0, 0x1404;
    prmt.b32 b, $4, 0, 0x3424;
    shl.b32 c, a, 4;
    and.b32 c, c, 0x80008000;
    shr.u32 e, a, 2;
    lop3.b32 c, e, 0x01C001C0, c, 0xEA;
    shl.b32 d, b, 4;
    and.b32 d, d, 0x80008000;
    shr.u32 f, b, 2;
    lop3.b32 d, f, 0x01C001C0, d, 0xEA;
    shr.u32 e, a, 6;
    and.b32 a, a, 0x80008000;
    lop3.b32 e, e, 0x01C001C0, a, 0xEA;
    shr.u32 f, b, 6;
    and.b32 b, b, 0x80008000;
    lop3.b32 f, f, 0x01C001C0, b, 0xEA;
    mov.b32 a, 0x7E807E80;
    mov.b32 b, 0x80008000;
    fma.rn.bf16x2 c, c, a, b;
    fma.rn.bf16x2 d, d, a, b;
    fma.rn.bf16x2 e, e, a, b;
    fma.rn.bf16x2 f, f, a, b;
    fma.rn.bf16x2 $0, c, $5, b;
    fma.rn.bf16x2 $1, d, $6, b;
    fma.rn.bf16x2 $2, e, $5, b;
    fma.rn.bf16x2 $3, f, $6, b;
    }"""
)
_TO_E4M3 = tl.constexpr(
    """{
    .reg .b32 a, b;
    shl.b32 a, $2, 4;
    and.b32 a, a, 0x80808080;
    shl.b32 b, $2, 2;
    lop3.b32 $0, b, 0x1C1C1C1C, a, 0xEA;
    and.b32 a, $2, 0x80808080;
    shr.u32 b, $2, 2;
    lop3.b32 $1, b, 0x1C1C1C1C, a, 0xEA;
    }"""
)


@triton.jit
def feed(x, STORED: tl.constexpr):
    """[N, K] with the columns of each group in the order of the product: x stored as bf16, mxfp8 or mxfp4.

    Column 8t + 4p + 2o + n is nibble n of byte 4t + 2p + o. Lane t of four takes pairs of columns 8q + 2t to
    mma.m16n8k16, and fours 16q + 4t to m16n8k32. 4-bit operands stay as they are.
    """
    if STORED == "mxfp4":
        return x
    else:  # noqa: RET505  (Triton compiles one of the two: both must end the function)
        N: tl.constexpr = x.shape[0]
        K: tl.constexpr = x.shape[1]
        parts = tl.reshape(x, (N, K // 32, 4, 2, 2, 2))  # t p o n
        if STORED == "mxfp8":
            ordered = tl.permute(parts, (0, 1, 5, 2, 3, 4))
        else:
            ordered = tl.permute(parts, (0, 1, 5, 3, 2, 4))
        return tl.reshape(ordered, (N, K))


@triton.jit
def mxfp4_to_bf16(codes, scales):
    """[N, K/2] codes and [N, K/32] e8m0, both uint8 -> [N, K] bf16, fed."""
    N: tl.constexpr = codes.shape[0]
    HALF: tl.constexpr = codes.shape[1]
    codes = tl.reshape(codes, (N, HALF // 16, 16))
    if INTERPRETED:
        nibbles = tl.reshape(tl.join(codes & 15, codes >> 4), (N, HALF // 16, 32))
        values = e2m1_to_fp32(nibbles) * e8m0_to_fp32(scales)[:, :, None]
        wide = round_to(values, tl.bfloat16)
    else:
        bits = tl.maximum(scales.to(tl.uint16) << 7, 0x40).to(tl.uint16)  # byte 0 is 2^-127, a subnormal
        scale = tl.broadcast_to(bits.to(tl.bfloat16, bitcast=True)[:, :, None], (N, HALF // 16, 16))
        low, high = tl.inline_asm_elementwise(
            _TO_BF16, "=r,=r,=r,=r,r,r,r", [codes, scale], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
        wide = tl.join(low, high)
    return feed(tl.reshape(wide, (N, 2 * HALF)), "bf16")


@triton.jit
def mxfp4_to_mxfp8(codes, scales):
    """[N, K/2] codes and [N, K/32] e8m0, both uint8 -> [N, K] e4m3, fed, and [N, K/32] e8m0, NaN past 248."""
    if INTERPRETED:
        low = ((codes & 7) << 2) | ((codes & 8) << 4)
        high = ((codes >> 2) & 0x1C) | (codes & 0x80)
    else:
        low, high = tl.inline_asm_elementwise(
            _TO_E4M3, "=r,=r,r", [codes], dtype=(tl.uint8, tl.uint8), is_pure=True, pack=4
        )
    e4m3 = feed(tl.reshape(tl.join(low, high), (codes.shape[0], 2 * codes.shape[1])), "mxfp8")
    return e4m3.to(tl.float8e4nv, bitcast=True), tl.minimum(scales.to(tl.int32) + E4M3_SHIFT, 255).to(tl.uint8)


@triton.jit
def e2m1_to_fp32(codes):
    bits = ((codes & 8).to(tl.uint32) << 28) | ((codes & 7).to(tl.uint32) << 22)
    return bits.to(tl.float32, bitcast=True) * 2.0**126


@triton.jit
def e8m0_to_fp32(scales):
    bits = tl.where(scales == 255, 0x7FC00000, tl.maximum(scales.to(tl.uint32) << 23, 0x400000))
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def nearest(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    """|x| rounded to a float of MANTISSA bits: ties to even, subnormals, saturating. As formats.group's."""
    DROP: tl.constexpr = 23 - MANTISSA
    ANCHOR: tl.constexpr = 2.0 ** (24 - BIAS - MANTISSA)  # its unit in the last place is the smallest subnormal
    magnitude = x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
    odd = (magnitude >> DROP) & 1
    normal = ((magnitude + odd + ((1 << (DROP - 1)) - 1)) >> DROP) << DROP
    size = tl.abs(x)
    rounded = tl.where(size < 2.0 ** (1 - BIAS), (size + ANCHOR) - ANCHOR, normal.to(tl.float32, bitcast=True))
    return tl.minimum(rounded, LARGEST)


@triton.jit
def encode(x, rounded, MANTISSA: tl.constexpr, BIAS: tl.constexpr, SIGN: tl.constexpr):
    """Codes, as uint8, of what `nearest` made of x; bit SIGN is x's sign."""
    normal = (rounded.to(tl.uint32, bitcast=True) >> (23 - MANTISSA)) - ((127 - BIAS) << MANTISSA)
    subnormal = (rounded * 2.0 ** (BIAS + MANTISSA - 1)).to(tl.uint32)
    sign = x.to(tl.uint32, bitcast=True) >> 31
    return (tl.where(rounded < 2.0 ** (1 - BIAS), subnormal, normal) | (sign << SIGN)).to(tl.uint8)


@triton.jit
def scale_of(groups, MAX_EXPONENT: tl.constexpr):
    """[N, G] e8m0 of [N, G, 32] fp32: floor(log2(max|x|)) - MAX_EXPONENT. NaN where a value is not finite."""
    top = tl.max(groups.to(tl.uint32, bitcast=True) & 0x7FFFFFFF, axis=2)  # as integers NaN is the largest
    exponent = (top >> 23).to(tl.int32)
    return tl.where(exponent == 255, 255, tl.maximum(exponent - MAX_EXPONENT, 0)).to(tl.uint8)


@triton.jit
def store_activation(
    x, rows, is_row, first, values, scales, K: tl.constexpr, FORMAT: tl.constexpr, NATIVE: tl.constexpr
):
    """Writes x [N, C] fp32 to columns `first`.. of the `rows` of an activation of K columns, in FORMAT.

    NATIVE mxfp8 and mxfp4 are stored as codes and scales, else as the bf16 number that these stand for; all fed.
    """
    N: tl.constexpr = x.shape[0]
    C: tl.constexpr = x.shape[1]
    columns = first + tl.arange(0, C)
    at = rows[:, None] * K + columns[None, :]
    inside = is_row[:, None] & (columns < K)[None, :]
    if FORMAT == "bf16":
        tl.store(values + at, feed(round_to(x, tl.bfloat16), "bf16"), mask=inside)
    else:
        MANTISSA: tl.constexpr = 3 if FORMAT == "mxfp8" else 1
        BIAS: tl.constexpr = 7 if FORMAT == "mxfp8" else 1
        LARGEST: tl.constexpr = 448.0 if FORMAT == "mxfp8" else 6.0
        x = tl.reshape(x, (N, C // GROUP, GROUP))
        scale = scale_of(x, 8 if FORMAT == "mxfp8" else 2)
        # 254 - b is the reciprocal of b
        x = x * ((254 - scale.to(tl.int32)) << 23).to(tl.float32, bitcast=True)[:, :, None]
        rounded = nearest(x, MANTISSA, BIAS, LARGEST)
        if NATIVE:
            groups = first // GROUP + tl.arange(0, C // GROUP)
            scale_at = rows[:, None] * (K // GROUP) + groups[None, :]
            tl.store(scales + scale_at, scale, mask=is_row[:, None] & (groups < K // GROUP)[None, :])
            if FORMAT == "mxfp8":
                codes = tl.reshape(encode(x, rounded, 3, 7, 7), (N, C))
                tl.store(values + at, feed(codes, "mxfp8"), mask=inside)
            else:
                codes = tl.reshape(encode(x, rounded, 1, 1, 3), (N, C // 2, 2))
                low, high = tl.split(codes)
                pairs = first // 2 + tl.arange(0, C // 2)
                pairs_inside = is_row[:, None] & (pairs < K // 2)[None, :]
                tl.store(values + rows[:, None] * (K // 2) + pairs[None, :], low | (high << 4), mask=pairs_inside)
        else:
            signed = tl.where(x < 0, -rounded, rounded) * e8m0_to_fp32(scale)[:, :, None]
            tl.store(values + at, feed(tl.reshape(round_to(signed, tl.bfloat16), (N, C)), "bf16"), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def store_rows(
    x, values, scales, num_rows, K: tl.constexpr, FORMAT: tl.constexpr, NATIVE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of x [T, K] a program; see store_activation."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * COLUMNS
    columns = first + tl.arange(0, COLUMNS)
    is_row = rows < num_rows
    inside = is_row[:, None] & (columns < K)[None, :]
    wide = widen(tl.load(x + rows[:, None] * K + columns[None, :], mask=inside, other=0))
    store_activation(wide, rows, is_row, first, values, scales, K, FORMAT, NATIVE)
