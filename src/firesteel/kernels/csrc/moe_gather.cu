// Copies each token to its places, in the order in which moe_wgmma reads it.
#include "swizzle.cuh"

constexpr int H = HIDDEN, A = ACTIVE, THREADS = 128, PARTS = H / 8, STRIDE = 80;

// x is [tokens, H], ids and places [tokens, A]; `out` is [H / 64, num_places, 64].
extern "C" __global__ void
__launch_bounds__(THREADS) moe_gather(const u16 *x, const long long *ids, const int *places, u16 *out, int num_places) {
    __shared__ __align__(16) u16 row[H / 64 * STRIDE];  // 64 values and a gap, so that reads use different banks
    u64 token = blockIdx.x;
    launch_dependents();
    wait_for_inputs();
    int place[A];
#pragma unroll
    for (int rank = 0; rank < A; rank++) place[rank] = ids[token * A + rank] < 0 ? -1 : places[token * A + rank];
    for (int part = threadIdx.x; part < PARTS; part += THREADS)
        *(uint4 *)(row + part / 8 * STRIDE + part % 8 * 8) = *(const uint4 *)(x + token * H + part * 8);
    __syncthreads();
    for (int part = threadIdx.x; part < PARTS; part += THREADS) {
        const u16 *from = row + part / 8 * STRIDE;
        u32 pair[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            pair[i] = from[column_at(part % 8, 2 * i)] | (u32)from[column_at(part % 8, 2 * i + 1)] << 16;
#pragma unroll
        for (int rank = 0; rank < A; rank++)
            if (place[rank] >= 0)
                *(uint4 *)(out + part_at(part / 8, place[rank], part % 8, num_places)) =
                    uint4{pair[0], pair[1], pair[2], pair[3]};
    }
}
