#pragma once
// What fc1 does with a strip; knows no kernel.
#include "experts.cuh"

// Gate and up: codes, scales and bias are of [EXPERTS, 2 INTERMEDIATE] rows, `inner` is [num_tokens, ACTIVE,
// INTERMEDIATE], or what else values can be `put` into. Strips are counted through all chosen experts.
DEVICE void put(u16 *inner, u64 at, float y) { inner[at] = narrow(y); }
template <class S, class Inner = u16 *> struct Up {
    static constexpr int STRIPS = 2 * I / 16;
    const Chosen *chosen;
    const u8 *codes, *scales;
    const u16 *bias;
    Inner inner;
    float limit;

    __device__ __forceinline__ Rows rows(int strip) const {
        u64 row = (u64)chosen->expert[strip / STRIPS] * 2 * I;
        return Rows{codes + row * S::ROW_BYTES, scales + row * S::SCALE_ROW, strip % STRIPS * 16, 8, bias + row};
    }
    // The sums of a strip, value i of a lane that of row (32 i + lane) / width, and its bias.
    __device__ __forceinline__ void finish(int strip, const u16 *of_rows, const float *sum) const {
        int place = strip / STRIPS, width = width_of(chosen, place);
        dawdle();
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            if (32 * i >= 16 * width) break;
            int at = 32 * i + threadIdx.x % 32, row = at / width, which = at % width;
            float mine = sum[i] + wide(of_rows[row % 16]), up = __shfl_xor_sync(~0u, mine, width);  // of the next row
            if (row >= 16 || row % 2 || (TOKENS > 1 && which >= chosen->wanted[place])) continue;
            float y = swiglu(mine, up, limit);
            int token = chosen->token[place][which], slot = chosen->slot[place][which];
            put(inner, ((u64)token * A + slot) * I + (strip % STRIPS * 16 + row) / 2, y);
        }
    }
};

// The pieces from `number` on that are of expert `place`, for WIDTH tokens; the number of the next.
template <class S, int WIDTH>
DEVICE int multiply_expert(Ring<S> &ring, int number, const Work<S> &work, const Chosen *chosen, int place,
                           const char *bytes, const float *units) {
    using N = Narrow<S, WIDTH>;
    Own<N> own;
    take_wanted<N>(chosen, place, [&](int i) { return bytes + chosen->token[place][i] * S::X_STRIDE; },
                   [&](int i) { return units[chosen->token[place][i]]; }, own);
    for (; number < work.total && work.at(number).strip / Up<S>::STRIPS == place; number++) {
        float c[N::SETS][2];
        multiply_codes<N>(ring, number, own, c);
        leave_codes<N>(ring, number, c);
        ring.tell(ring.done, number);
    }
    return number;
}

// The multiplying warps' whole work on fc1. x [TOKENS][X_STRIDE] is no more afterwards; `units` has room for WARPS
// TOKENS.
template <class S> DEVICE void multiply_up(Ring<S> &ring, const Work<S> &work, const Chosen *chosen, char *x,
                                           float *units) {
    if constexpr (TOKENS == 1) {
        multiply_all<S>(ring, work, x);
    } else {
        int warp = threadIdx.x / 32;
        char *bytes = x + warp * S::BYTES_EACH;
        units += warp * TOKENS;
        for (int token = 0; token < TOKENS; token++) {
            float unit = split_bytes<S>(x + token * S::X_STRIDE, bytes + token * S::X_STRIDE);
            if (threadIdx.x % 32 == 0) units[token] = unit;
        }
        __syncwarp();
        for (int number = 0; number < work.total;) {
            int place = work.at(number).strip / Up<S>::STRIPS;
            WITH_WIDTH(width_of(chosen, place),
                       (number = multiply_expert<S, WIDTH>(ring, number, work, chosen, place, bytes, units)))
        }
    }
}

// The finisher's, of a piece and of all.
template <class S, class Inner>
DEVICE void finish_up(Ring<S> &ring, int number, int strip, const Up<S, Inner> &up) {
    float sum[S::VALUES];
    const u16 *bias = ring.bias(number);
    ring.wait(ring.done, number);
    ring.add_up(number, sum, 16 * width_of(up.chosen, strip / up.STRIPS));
    up.finish(strip, bias, sum);
    ring.tell(ring.free, number);
}
template <class S> DEVICE void finish_up(Ring<S> &ring, const Work<S> &work, const Up<S> &up) {
    for (int number = 0; number < work.total; number++) finish_up<S>(ring, number, work.at(number).strip, up);
}
