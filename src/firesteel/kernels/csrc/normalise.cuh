#pragma once
// RMS norm of a few tokens into shared memory.
#include "primitives.cuh"

// This thread's part of the norm's weights; loaded before the wait for the inputs.
template <int K, int THREADS> struct NormWeights {
    static constexpr int VECTORS = K / 8, OWN = (VECTORS + THREADS - 1) / THREADS;
    uint4 own[OWN];
    __device__ __forceinline__ NormWeights(const u16 *weight) {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            int at = threadIdx.x + i * THREADS;
            own[i] = at < VECTORS ? ((const uint4 *)weight)[at] : uint4{0, 0, 0, 0};
        }
    }
};

// 1 / rms of a token, from the sums of squares of each warp.
template <int K, int WARPS> DEVICE float inverse_rms(const float *scratch, int token, float eps) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += scratch[token * WARPS + w];
    return rsqrtf(sum / K + eps);
}
// A pair of r / rms(r) * weight in bf16.
DEVICE u32 scale_pair(u32 pair, float inverse, u32 weights) {
    return narrow_pair(wide_low(pair) * inverse * wide_low(weights), wide_high(pair) * inverse * wide_high(weights));
}

// Writes x [tokens][X_STRIDE] to shared memory: r / rms(r) * weight in bf16. Called by the first THREADS threads.
// With ONLY_SUMS it only leaves the sums of squares in `scratch` [TOKENS][warps].
template <int K, int THREADS, int TOKENS, int X_STRIDE, bool ONLY_SUMS = false, class Weights>
DEVICE void normalise(const u16 *r, const Weights &weights, float eps, char *x, float *scratch, int num_tokens) {
    constexpr int VECTORS = K / 8, OWN = (VECTORS + THREADS - 1) / THREADS, WARPS = THREADS / 32;
    constexpr bool KEEP = TOKENS * OWN <= 4 && !ONLY_SUMS;  // otherwise rows are read a second time, from cache
    int warp = threadIdx.x / 32;
    uint4 rows[KEEP ? TOKENS : 1][OWN];
    auto read = [&](int token, int i) {
        int at = threadIdx.x + i * THREADS;
        return at < VECTORS && token < num_tokens ? ((const uint4 *)(r + token * K))[at] : uint4{0, 0, 0, 0};
    };
#pragma unroll
    for (int token = 0; token < TOKENS; token++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            uint4 v = read(token, i);
            if (KEEP) rows[token][i] = v;
            const u32 *pairs = (const u32 *)&v;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float low = wide_low(pairs[j]), high = wide_high(pairs[j]);
                sum += low * low + high * high;
            }
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) scratch[token * WARPS + warp] = sum;
    }
    named_barrier_sync(1, THREADS);
    if constexpr (!ONLY_SUMS) {
#pragma unroll
        for (int token = 0; token < TOKENS; token++) {
            float inverse = inverse_rms<K, WARPS>(scratch, token, eps);
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                int at = threadIdx.x + i * THREADS;
                if (at < VECTORS) {
                    uint4 v = KEEP ? rows[token][i] : read(token, i), w = weights.own[i];
                    u32 *pairs = (u32 *)&v;
                    const u32 *by = (const u32 *)&w;
#pragma unroll
                    for (int j = 0; j < 4; j++) pairs[j] = scale_pair(pairs[j], inverse, by[j]);
                    *(uint4 *)(x + token * X_STRIDE + at * 16) = v;
                }
            }
        }
        named_barrier_sync(1, THREADS);
    }
}
