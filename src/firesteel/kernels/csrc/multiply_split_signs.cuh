#pragma once
// Multiplies packed FP4 rows by one token, as multiply_fp4.cuh does, but sums positive and negative codes separately,
// so that no negated copy of x is needed when x changes.
#include "multiply_fp4.cuh"

template <class S> struct SplitSigns {
    u32 b[2 * S::OWN][2];  // high bytes of a group as one MMA column, low bytes as the next
    float unit;            // value of one integer step of x, times 1/2 because E2M1 codes are looked up doubled
    static_assert(S::TOKENS == 1, "one token");

    // Loads x, quantised into `bytes` of this warp's columns.
    __device__ __forceinline__ void take(const char *bytes, float worth) {
        load_bytes<S>(0, [&](int) { return bytes; }, b);
        unit = worth;
    }
    // Multiplies this warp's columns of one stage of the ring.
    __device__ __forceinline__ void multiply(Ring<S> &ring, int number) const {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stage = number % S::STAGES;
        const char *data = ring.data + stage * S::STAGE_BYTES;
        const u8 *scales = (const u8 *)data + 16 * S::STRIDE + lane / 4 * S::SCALE_ROW + warp * 2 * S::OWN;
        const char *codes = data + lane / 4 * S::STRIDE + lane % 4 * 8 + warp * S::OWN * 32;
        u32 small = 0x03020100u + (blockDim.x >> 20);  // opaque to the compiler, so that it stays in a register
        barrier_wait(ring.full + stage, number / S::STAGES & 1);
        float c[1][2] = {{0, 0}};
        uint2 tops, lows;  // sixteen codes of each of two rows
#pragma unroll
        for (int begin = 0; begin < 2 * S::OWN; begin += S::SPREAD) {
            int more[4] = {0, (int)MAGIC_BITS, 0, (int)MAGIC_BITS}, less[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = begin; i < begin + S::SPREAD && i < 2 * S::OWN; i++) {
                if (i % 2 == 0) {
                    tops = *(const uint2 *)(codes + i / 2 * 32);
                    lows = *(const uint2 *)(codes + 8 * S::STRIDE + i / 2 * 32);
                }
                u32 positive[4], negative[4];
                look_up(small, i % 2 ? tops.y : tops.x, i % 2 ? lows.y : lows.x, positive, negative);
                multiply_add_bytes(more, positive, b[i]);
                multiply_add_bytes(less, negative, b[i]);
            }
            int group = min(begin + lane % 4, 2 * S::OWN - 1);  // past the end the sum is 0: any scale will do
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float scale = __uint_as_float((u32)scales[8 * j * S::SCALE_ROW + group] << 23);
                int whole = (more[2 * j] - less[2 * j]) * HIGH + (more[2 * j + 1] - less[2 * j + 1]);
                c[0][j] = fmaf(__int_as_float(whole) - MAGIC, scale, c[0][j]);
            }
        }
        c[0][0] *= unit, c[0][1] *= unit;
        write_sums_fp4<S>(ring, number, c);
        ring.arrive(ring.done, number);
    }
};
