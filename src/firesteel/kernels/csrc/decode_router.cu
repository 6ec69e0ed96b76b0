// Norm and router logits; one warp per expert.
#include "normalise.cuh"

constexpr int H = HIDDEN, E = EXPERTS;
constexpr int WARPS = 4, THREADS = 32 * WARPS, X_STRIDE = padded(2 * H);
static_assert(E % WARPS == 0, "CTAs are full");

// `logits` is [tokens, EXPERTS].
extern "C" __global__ void
__launch_bounds__(THREADS)
decode_router(const u16 *r, const u16 *norm, const u16 *weight, const u16 *bias, float *logits, float eps) {
    __shared__ __align__(16) char x[X_STRIDE];
    __shared__ float scratch[WARPS];
    constexpr int VECTORS = H / 8, OWN = (VECTORS + 31) / 32;
    int lane = threadIdx.x % 32, expert = blockIdx.x * WARPS + threadIdx.x / 32, token = blockIdx.y;
    launch_dependents();
    uint4 w[OWN];  // the expert's row, loaded before the wait
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        w[i] = uint4{0, 0, 0, 0};
        if (i * 32 + lane < VECTORS) w[i] = ((const uint4 *)(weight + expert * H))[i * 32 + lane];
    }
    float added = wide(bias[expert]);
    NormWeights<H, THREADS> weights(norm);
    wait_for_inputs();
    normalise<H, THREADS, 1, X_STRIDE>(r + token * H, weights, eps, x, scratch, 1);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        if (i * 32 + lane >= VECTORS) continue;
        uint4 v = *(const uint4 *)(x + (i * 32 + lane) * 16);
        const u32 *p = (const u32 *)&v, *q = (const u32 *)&w[i];
#pragma unroll
        for (int j = 0; j < 4; j++) sum += wide_low(p[j]) * wide_low(q[j]) + wide_high(p[j]) * wide_high(q[j]);
    }
    sum = warp_sum(sum);
    random_delay();
    if (lane == 0) logits[token * E + expert] = sum + added;
}
