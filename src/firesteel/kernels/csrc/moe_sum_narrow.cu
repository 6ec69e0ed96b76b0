// Each token's parts in bf16, added in fp32 in the order of its ranks. A pair without an expert has no part.
#include "primitives.cuh"

constexpr int H = HIDDEN, A = ACTIVE, THREADS = 128;

// `parts` is [tokens, ACTIVE, HIDDEN], ids [tokens, ACTIVE], y [tokens, HIDDEN]. A CTA adds a token's.
extern "C" __global__ void
__launch_bounds__(THREADS) moe_sum_narrow(const u16 *parts, const long long *ids, u16 *y) {
    u64 token = blockIdx.x;
    launch_dependents();
    wait_for_inputs();
    bool has_part[A];
#pragma unroll
    for (int rank = 0; rank < A; rank++) has_part[rank] = ids[token * A + rank] >= 0;
    for (int column = threadIdx.x * 8; column < H; column += THREADS * 8) {
        uint4 part[A];
#pragma unroll
        for (int rank = 0; rank < A; rank++)
            part[rank] = has_part[rank] ? *(const uint4 *)(parts + (token * A + rank) * H + column) : uint4{0, 0, 0, 0};
        float sum[8] = {};
#pragma unroll
        for (int rank = 0; rank < A; rank++) {
            u32 pairs[4] = {part[rank].x, part[rank].y, part[rank].z, part[rank].w};
#pragma unroll
            for (int i = 0; i < 4; i++) sum[2 * i] += wide_low(pairs[i]), sum[2 * i + 1] += wide_high(pairs[i]);
        }
        *(uint4 *)(y + token * H + column) = uint4{narrow_pair(sum[0], sum[1]), narrow_pair(sum[2], sum[3]),
                                                   narrow_pair(sum[4], sum[5]), narrow_pair(sum[6], sum[7])};
    }
}
