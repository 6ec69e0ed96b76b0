#pragma once
// Integer scan and sum over the lanes of a warp.
#include "primitives.cuh"

// The sum over lanes 0 to this one, inclusive.
DEVICE int inclusive_scan(int x) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        int more = __shfl_sync(~0u, x, lane - i & 31);
        if (lane >= i) x += more;
    }
    return x;
}
DEVICE int warp_total(int x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}
