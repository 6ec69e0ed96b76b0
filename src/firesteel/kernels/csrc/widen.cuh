#pragma once
// Widens E2M1 codes to bf16, exactly: weights times 2^-32, for scales from 2^-93 to 2^33. Larger ones become infinite,
// smaller ones lose bits.
#include "primitives.cuh"

constexpr float WIDENED_UNIT = 4294967296.f;

// A code's bits as the sign, the lowest exponent bits and the highest mantissa bit of bf16 are its value times 2^-126,
// subnormal numbers included; so the factor is the scale times 2^94.
DEVICE u32 widen_scale(u32 scale_e8m0) { return min(scale_e8m0 + 94, 255u) * 0x00800080u; }

// Eight codes as four pairs, to every second word of `pairs`: codes i and i + 4 are a pair.
DEVICE void widen_codes(u32 codes, u32 scale, u32 *pairs) {
    constexpr u32 KEPT = 0x81C081C0u;  // one product shifts a code by 12, which places the sign, and by 6
    u32 upper = codes >> 8;
    pairs[0] = multiply_pairs((codes & 0x000F000Fu) * 0x1040u & KEPT, scale);
    pairs[2] = multiply_pairs((codes & 0x00F000F0u) * 0x0104u & KEPT, scale);
    pairs[4] = multiply_pairs((upper & 0x000F000Fu) * 0x1040u & KEPT, scale);
    pairs[6] = multiply_pairs((upper & 0x00F000F0u) * 0x0104u & KEPT, scale);
}
