// Runs one instruction of instructions.cuh on words from a test. `given` is [CTAs][32][6], `results` is [CTAs][32][4].
#include "instructions.cuh"

enum Which { PERMUTE, NARROW, ROUND, EXTREMES, TRANSPOSE, MULTIPLY, MULTIPLY_BYTES, SHARE, MULTIPLY_PAIRS, LOAD };

extern "C" __global__ void single(const u32 *given, u32 *results, int which) {
    int at = blockIdx.x * 32 + threadIdx.x;
    const u32 *in = given + 6 * at;
    u32 *out = results + 4 * at;
    float low = __uint_as_float(in[0]), high = __uint_as_float(in[1]);
    if (which == PERMUTE) out[0] = permute_bytes(in[0], in[1], in[2]);
    if (which == NARROW) out[0] = narrow_pair(low, high);
    if (which == EXTREMES) out[0] = __float_as_uint(max_nan(low, high)), out[1] = __float_as_uint(min_nan(low, high));
    if (which == TRANSPOSE) out[0] = transpose(in[0]);
    if (which == ROUND) {
        out[2] = narrow_e4m3(low, high);
        wide_e4m3(out[2], low, high);
        out[0] = __float_as_uint(low), out[1] = __float_as_uint(high);
    }
    if (which == MULTIPLY) {
        float sum[4] = {1, 2, 3, 4};
        multiply_add(sum, in[0], in[1], in[2], in[3], in[4], in[5]);
        for (int i = 0; i < 4; i++) out[i] = __float_as_uint(sum[i]);
    }
    if (which == MULTIPLY_BYTES) {
        int sum[4] = {1, 2, 3, 4};
        multiply_add_bytes(sum, in, in + 4);
        for (int i = 0; i < 4; i++) out[i] = sum[i];
    }
    if (which == MULTIPLY_PAIRS) out[0] = multiply_pairs(in[0], in[1]);
    if (which == LOAD) {
        __shared__ __align__(16) u32 rows[32][4];
        for (int i = 0; i < 4; i++) rows[threadIdx.x][i] = in[i];
        __syncthreads();
        load_matrices(out, rows[threadIdx.x]);
    }
    if (which == SHARE) {
        out[0] = __shfl_xor_sync(~0u, in[0], 5), out[1] = __ballot_sync(~0u, in[0] & 1);
        out[2] = __match_any_sync(~0u, in[0] & 3), out[3] = __reduce_max_sync(~0u, in[0]);
    }
}
