#pragma once
// Sums over a warp's lanes; knows no meaning of them.
#include "primitives.cuh"

// Of the lanes up to and with this one.
DEVICE int sum_up_to(int x) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        int more = __shfl_sync(~0u, x, lane - i & 31);
        if (lane >= i) x += more;
    }
    return x;
}
DEVICE int sum_of_all(int x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}
