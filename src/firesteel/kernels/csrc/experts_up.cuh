#pragma once
// What fc1 does with a strip; knows no kernel.
#include "experts.cuh"

// Gate and up: codes, scales and bias are of [EXPERTS, 2 INTERMEDIATE] rows, `inner` is [num_tokens, ACTIVE,
// INTERMEDIATE]. Strips are counted through all chosen experts.
template <class S> struct Up {
    static constexpr int STRIPS = 2 * I / 16;
    const Chosen *chosen;
    const u8 *codes, *scales;
    const u16 *bias;
    u16 *inner;
    float limit;
    int num_tokens;

    __device__ __forceinline__ Rows rows(int strip) const {
        u64 row = (u64)chosen->expert[strip / STRIPS] * 2 * I;
        return Rows{codes + row * S::ROW_BYTES, scales + row * S::SCALE_ROW, strip % STRIPS * 16, 8, bias + row};
    }
    // `of_rows`: the strip's bias.
    __device__ __forceinline__ void early(const u16 *of_rows, Early &e) const {
#pragma unroll
        for (int i = 0; i < S::VALUES; i++)
            e.added[i] = wide(of_rows[(32 * i + threadIdx.x % 32) % S::COUNT / TOKENS]);
    }
    __device__ __forceinline__ void finish(int strip, const Early &e, const float *sum) const {
        dawdle();
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            int at = 32 * i + threadIdx.x % 32, row = strip % STRIPS * 16 + at % S::COUNT / TOKENS;
            int token = at % TOKENS, slot = chosen->slot[strip / STRIPS][token];
            float mine = sum[i] + e.added[i], up = __shfl_xor_sync(~0u, mine, TOKENS);  // of the next row
            if (at >= S::COUNT || row % 2 || token >= num_tokens || slot < 0) continue;
            float gate = fminf(mine, limit);
            up = fminf(fmaxf(up, -limit), limit);
            float y = __fdividef(gate, 1 + __expf(gate * -1.702f)) * (up + 1);
            inner[((u64)token * A + slot) * I + row / 2] = narrow(y);
        }
    }
};
