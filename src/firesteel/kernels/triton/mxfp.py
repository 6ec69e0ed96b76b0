"""MXFP4 and MXFP8 in registers: widens weights exactly and rounds activations by the OCP rule.

An E2M1 code moved to the low exponent bits of a wider float is its value times a power of two, subnormal 0.5
included: times 2^-126 in bf16 and fp32, times 2^-6 in E4M3. So no table is needed, and every product below is exact
as long as the result is in the wider type's range.

The columns of a group may be multiplied in any order if both operands use the same one. `feed` chooses an order in
which a lane's MMA operands come from four adjacent bytes: no bytes to gather, no nibbles to interleave. Weights are
fed as they are widened, activations when they are stored. `formats.feed` is the same in torch.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from firesteel.kernels.triton.arithmetic import INTERPRETED, round_to, widen

GROUP = tl.constexpr(32)
WIDENED_SHIFT = tl.constexpr(32)  # keeps factors, 2^126 times a scale, finite for all scales of weights
E4M3_SHIFT = tl.constexpr(6)  # E2M1 bits read as E4M3 are 2^6 too small
# 8 nibbles -> bf16 times 2^-126; register j holds nibbles j and j + 4. One product with the factor makes them
# normal. lop3 masks the bits of other nibbles. fma is used because mul.bf16x2 does not exist before sm_90.
_TO_BF16 = tl.constexpr(
    """{
    .reg .b32 a, b, c, d, e, o, s, z;
    mov.b32 s, {$9, $9};
    and.b32 o, $8, 0x80808080;
    and.b32 e, $8, 0x08080808;
    shr.u32 c, $8, 6;
    shl.b32 a, $8, 2;
    lop3.b32 d, c, o, 0x01C001C0, 0xE4;
    lop3.b32 c, c, e, 0x001C001C, 0xE4;
    shl.b32 o, o, 8;
    shl.b32 e, e, 8;
    lop3.b32 b, a, o, 0x01C001C0, 0xE4;
    lop3.b32 a, a, e, 0x001C001C, 0xE4;
    shl.b32 a, a, 4;
    shl.b32 c, c, 4;
    mov.b32 z, 0x80008000;
    fma.rn.bf16x2 a, a, s, z;
    fma.rn.bf16x2 b, b, s, z;
    fma.rn.bf16x2 c, c, s, z;
    fma.rn.bf16x2 d, d, s, z;
    mov.b32 {$0, $4}, a;
    mov.b32 {$1, $5}, b;
    mov.b32 {$2, $6}, c;
    mov.b32 {$3, $7}, d;
    }"""
)
# 4 e8m0 bytes -> their factors: bf16 of the same exponent, times 2^94
_TO_FACTORS = tl.constexpr(
    """{
    .reg .b32 a, b, c, z;
    mov.b32 c, 0x6E806E80;
    mov.b32 z, 0x80008000;
    prmt.b32 a, $4, 0, 0x4140;
    prmt.b32 b, $4, 0, 0x4342;
    shl.b32 a, a, 7;
    shl.b32 b, b, 7;
    fma.rn.bf16x2 a, a, c, z;
    fma.rn.bf16x2 b, b, c, z;
    mov.b32 {$0, $1}, a;
    mov.b32 {$2, $3}, b;
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
    """Reorders the columns of each group of x [N, K] as the product needs them; x is bf16, mxfp8 or mxfp4.

    Column 8t + 4p + 2o + n is nibble n of byte 4t + 2p + o. Lane t of four passes pairs of columns 8q + 2t
    to mma.m16n8k16, and fours 16q + 4t to m16n8k32. 4-bit operands keep their order.
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
            ordered = tl.permute(parts, (0, 1, 5, 4, 2, 3))
        return tl.reshape(ordered, (N, K))


@triton.jit
def e8m0_to_factors(scales, GROUPS: tl.constexpr):
    """Converts [N] uint32 of 4 e8m0 to [N, GROUPS] bf16: scales times 2^(126 - WIDENED_SHIFT), GROUPS 2 or 4.

    Infinite for scales above 2^33, which weights do not have, and 0 for the smallest, 2^-127.
    """
    if INTERPRETED:
        some = (scales[:, None] >> (8 * tl.arange(0, GROUPS))[None, :]) & 255
        return round_to((some << 23).to(tl.float32, bitcast=True) * 2.0 ** (126 - WIDENED_SHIFT), tl.bfloat16)
    else:  # noqa: RET505  (Triton compiles one of the two: both must end the function)
        a, b, c, d = tl.inline_asm_elementwise(
            _TO_FACTORS, "=h,=h,=h,=h,r", [scales], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=1
        )
        if GROUPS == 2:
            return tl.join(a, b)
        else:  # noqa: RET505
            return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (scales.shape[0], 4))


@triton.jit
def mxfp4_to_bf16(words, factors):
    """Widens codes [N, K/8], 8 per uint32, with [N, K/32] of e8m0_to_factors to [N, K] bf16, fed.

    The result is scaled by 2^-WIDENED_SHIFT; exact for scales from 2^-100 to 2^33.
    """
    N: tl.constexpr = words.shape[0]
    K: tl.constexpr = 8 * words.shape[1]
    if INTERPRETED:
        nibbles = (words[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :]) & 15
        values = tl.reshape(e2m1_to_fp32(nibbles), (N, K // 32, 32)) * 2.0**-126
        wide = round_to(values * widen(factors)[:, :, None], tl.bfloat16)
    else:
        factors = tl.reshape(tl.broadcast_to(factors[:, :, None], (N, K // 32, 4)), (N, K // 8))
        a0, b0, c0, d0, a1, b1, c1, d1 = tl.inline_asm_elementwise(
            _TO_BF16,
            "=h,=h,=h,=h,=h,=h,=h,=h,r,h",
            [words, factors],
            dtype=(tl.bfloat16,) * 8,
            is_pure=True,
            pack=1,
        )
        low = tl.join(tl.join(a0, a1), tl.join(c0, c1))
        high = tl.join(tl.join(b0, b1), tl.join(d0, d1))
        wide = tl.join(low, high)
    return feed(tl.reshape(wide, (N, K)), "bf16")


@triton.jit
def mxfp4_to_mxfp8(codes, scales):
    """Widens codes [N, K/2] and e8m0 [N, K/32] (uint8) to e4m3 [N, K], fed, and e8m0 [N, K/32], NaN past 248."""
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
    """Rounds |x| to a float of MANTISSA bits: ties to even, subnormals, saturating. Same as formats.group."""
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
    """Returns the codes, as uint8, of the result of `nearest`; bit SIGN is the sign of x."""
    normal = (rounded.to(tl.uint32, bitcast=True) >> (23 - MANTISSA)) - ((127 - BIAS) << MANTISSA)
    subnormal = (rounded * 2.0 ** (BIAS + MANTISSA - 1)).to(tl.uint32)
    sign = x.to(tl.uint32, bitcast=True) >> 31
    return (tl.where(rounded < 2.0 ** (1 - BIAS), subnormal, normal) | (sign << SIGN)).to(tl.uint8)


@triton.jit
def scale_of(groups, MAX_EXPONENT: tl.constexpr):
    """Returns e8m0 [N, G] of fp32 [N, G, 32]: floor(log2(max|x|)) - MAX_EXPONENT; NaN if a value is not finite."""
    top = tl.max(groups.to(tl.uint32, bitcast=True) & 0x7FFFFFFF, axis=2)  # compared as integers, NaN is largest
    exponent = (top >> 23).to(tl.int32)
    return tl.where(exponent == 255, 255, tl.maximum(exponent - MAX_EXPONENT, 0)).to(tl.uint8)


@triton.jit
def store_activation(
    x, rows, is_row, first, values, scales, K: tl.constexpr, FORMAT: tl.constexpr, NATIVE: tl.constexpr
):
    """Writes x [N, C] fp32 to columns `first`.. of the `rows` of an activation of K columns, in FORMAT.

    NATIVE mxfp8 and mxfp4 are stored as codes and scales, otherwise as the equal bf16 values; all are fed.
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
    x,
    values,
    scales,
    num_rows,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    NATIVE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Stores one tile of x [T, K] per program; see store_activation."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * COLUMNS
    columns = first + tl.arange(0, COLUMNS)
    is_row = rows < num_rows
    inside = is_row[:, None] & (columns < K)[None, :]
    wide = widen(tl.load(x + rows[:, None] * K + columns[None, :], mask=inside, other=0))
    store_activation(wide, rows, is_row, first, values, scales, K, FORMAT, NATIVE)
