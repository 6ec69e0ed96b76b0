#pragma once
// Packed FP4 rows times one token, as multiply_fp4.cuh, but positive and negative codes are summed apart: nothing need be
// negated when another row of x is taken; knows no layer.
#include "multiply_fp4.cuh"

template <class S> struct Apart {
    u32 b[2 * S::OWN][2];  // high bytes of a group's numbers as one column, low ones as the next
    float unit;            // what a number is worth, the half of E2M1's doubling included
    static_assert(S::TOKENS == 1, "one token");

    // x as `cut` into bytes of this warp's columns.
    __device__ __forceinline__ void take(const char *cut, float worth) {
        take_bytes<S>(0, [&](int) { return cut; }, b);
        unit = worth;
    }
    // A piece of the ring, this warp's columns of it.
    __device__ __forceinline__ void multiply(Ring<S> &ring, int number) const {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stage = number % S::STAGES;
        const char *data = ring.data + stage * S::STAGE_BYTES;
        const u8 *scales = (const u8 *)data + 16 * S::STRIDE + lane / 4 * S::SCALE_ROW + warp * 2 * S::OWN;
        const char *codes = data + lane / 4 * S::STRIDE + lane % 4 * 8 + warp * S::OWN * 32;
        u32 small = 0x03020100u + (blockDim.x >> 20);  // not to be made anew
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
            int group = min(begin + lane % 4, 2 * S::OWN - 1);  // one past the end has summed nothing: any scale will do
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float scale = __uint_as_float((u32)scales[8 * j * S::SCALE_ROW + group] << 23);
                int whole = (more[2 * j] - less[2 * j]) * HIGH + (more[2 * j + 1] - less[2 * j + 1]);
                c[0][j] = fmaf(__int_as_float(whole) - MAGIC, scale, c[0][j]);
            }
        }
        c[0][0] *= unit, c[0][1] *= unit;
        leave_codes<S>(ring, number, c);
        ring.tell(ring.done, number);
    }
};
