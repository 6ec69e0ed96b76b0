#pragma once
// Multiplies BF16 rows by bf16 tokens.
#include "ring.cuh"

// c += 16 rows of bf16 times x, which stays in shared memory. c[0] and c[1] are row lane / 4 of tokens 2 (lane % 4) and
// 2 (lane % 4) + 1; c[2] and c[3] are 8 rows further.
template <class S> DEVICE void multiply_bf16(Ring<S> &ring, int number, int chunk, const char *x, float *c) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stage = number % S::STAGES;
    const char *data = ring.data + stage * S::STAGE_BYTES + lane / 4 * S::STRIDE + lane % 4 * 8;
    const char *mine = x + lane / 4 * S::X_STRIDE + chunk * S::PART_BYTES + lane % 4 * 8;
    barrier_wait(ring.full + stage, number / S::STAGES & 1);
#pragma unroll
    for (int i = 0; i < S::OWN; i++) {
        int step = warp * S::OWN + i;
        if (S::OWN * S::WARPS > S::STEPS && step >= S::STEPS) break;
        uint2 top = *(const uint2 *)(data + step * 32), low = *(const uint2 *)(data + 8 * S::STRIDE + step * 32);
        uint2 b = {0, 0};
        if (S::TOKENS == 8 || lane / 4 < S::TOKENS) b = *(const uint2 *)(mine + step * 32);
        multiply_add(c, top.x, low.x, top.y, low.y, b.x, b.y);
    }
}
// Leaves this warp's partial sums for the storer.
template <class S> DEVICE void write_sums_bf16(Ring<S> &ring, int number, const float *c) {
    int lane = threadIdx.x % 32, row = lane / 4, token = lane % 4 * 2;
    float *mine = ring.mine(number);
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (token + i < S::TOKENS)
            mine[row * S::TOKENS + token + i] = c[i], mine[(row + 8) * S::TOKENS + token + i] = c[i + 2];
}
