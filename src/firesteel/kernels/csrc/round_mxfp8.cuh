#pragma once
// Activations rounded to MXFP8; knows no layer.
#include "primitives.cuh"

// Two neighbours of a group of 32, which 16 neighbouring lanes hold: rounded to E4M3 under the group's scale by the
// OCP rule, as formats/mxfp8.py does, and as bf16 again, which is exact. By a whole warp.
DEVICE u32 round_mxfp8(u32 pair) {
    u32 largest = max(pair & 0x7FFF, pair >> 16 & 0x7FFF);
#pragma unroll
    for (int apart = 8; apart; apart /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, apart));
    u32 scale = max(largest >> 7, 9u) - 8;  // E8M0; 2^-127 is no normal float: 2^-126 serves
    float times = __uint_as_float(254 - scale << 23), back = __uint_as_float(scale << 23);
    float low = wide_low(pair) * times, high = wide_high(pair) * times;
    round_e4m3(low, high);
    return narrow_pair(low * back, high * back);
}
