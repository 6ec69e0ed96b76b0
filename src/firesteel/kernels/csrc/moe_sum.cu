// Each token's parts, added in the order of its ranks. A pair without an expert has no part.
#include "primitives.cuh"

constexpr int H = HIDDEN, A = ACTIVE, THREADS = 128;

// `parts` is [tokens, ACTIVE, HIDDEN] fp32, ids [tokens, ACTIVE], y [tokens, HIDDEN].
extern "C" __global__ void
__launch_bounds__(THREADS) moe_sum(const float *parts, const long long *ids, u16 *y) {
    int column = (blockIdx.x * THREADS + threadIdx.x) * 2, token = blockIdx.y;
    launch_dependents();
    wait_for_inputs();
    if (column >= H) return;
    float low = 0, high = 0;
#pragma unroll
    for (int rank = 0; rank < A; rank++) {
        u64 pair = (u64)token * A + rank;
        const float *part = parts + pair * H + column;
        if (ids[pair] >= 0) low += part[0], high += part[1];
    }
    *(u32 *)(y + (u64)token * H + column) = narrow_pair(low, high);
}
