#pragma once
// Rounds activations to MXFP8.
#include "primitives.cuh"

// Each lane passes two neighbours of a group of 32; 16 neighbouring lanes hold a group. Rounds them to E4M3 with the
// group's scale by the OCP rule, as formats/mxfp8.py does, and returns them as bf16, which is exact. Called by a whole
// warp.
DEVICE u32 round_mxfp8(u32 pair) {
    u32 largest = max(pair & 0x7FFF, pair >> 16 & 0x7FFF);
#pragma unroll
    for (int apart = 8; apart; apart /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, apart));
    u32 scale = max(largest >> 7, 9u) - 8;  // E8M0; 2^-127 is subnormal in fp32, so 2^-126 is the least
    float times = __uint_as_float(254 - scale << 23), back = __uint_as_float(scale << 23);
    float low = wide_low(pair) * times, high = wide_high(pair) * times;
    round_e4m3(low, high);
    return narrow_pair(low * back, high * back);
}
