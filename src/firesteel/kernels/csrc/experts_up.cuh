#pragma once
// fc1 of the experts: gate and up projections, then SwiGLU.
#include "experts.cuh"

// Codes, scales and bias have [EXPERTS, 2 INTERMEDIATE] rows. `inner` is [num_tokens, ACTIVE, INTERMEDIATE], or any
// type with an overload of `put`. Strips are numbered consecutively over all chosen experts.
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
    // Adds the bias to a strip's sums, applies SwiGLU and stores. Value i of a lane is row (32 i + lane) / width.
    __device__ __forceinline__ void store(int strip, const u16 *of_rows, const float *sum) const {
        int place = strip / STRIPS, width = width_of(chosen, place);
        random_delay();
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            if (32 * i >= 16 * width) break;
            int at = 32 * i + threadIdx.x % 32, row = at / width, which = at % width;
            float mine = sum[i] + wide(of_rows[row % 16]), up = __shfl_xor_sync(~0u, mine, width);  // from the next row
            if (row >= 16 || row % 2 || (TOKENS > 1 && which >= chosen->wanted[place])) continue;
            float y = swiglu(mine, up, limit);
            int token = chosen->token[place][which], slot = chosen->slot[place][which];
            put(inner, ((u64)token * A + slot) * I + (strip % STRIPS * 16 + row) / 2, y);
        }
    }
};

// Where x of the i-th token that uses expert `place` lies.
DEVICE int row_of(const Chosen *chosen, int place, int i) { return IN_TURNS ? i : chosen->token[place][i]; }

// Multiplies the pieces from `number` on that belong to expert `place`, for WIDTH tokens; returns the next number.
template <class S, int WIDTH>
DEVICE int multiply_expert(Ring<S> &ring, int number, const Work<S> &work, const Chosen *chosen, int place,
                           const char *bytes, const float *units) {
    using N = Narrow<S, WIDTH>;
    Fragments<N> own;
    load_wanted<N>(
        chosen, place, [&](int i) { return bytes + row_of(chosen, place, i) * S::X_STRIDE; },
        [&](int i) { return units[row_of(chosen, place, i)]; }, own);
    for (; number < work.total && work.at(number).strip / Up<S>::STRIPS == place; number++) {
        float c[N::SETS][2];
        multiply_fp4<N>(ring, number, own, c);
        write_sums_fp4<N>(ring, number, c);
        ring.arrive(ring.done, number);
    }
    return number;
}

// The consumers' main loop for fc1. Overwrites x [TOKENS][X_STRIDE]; `units` has room for WARPS * TOKENS values.
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

// The same where x of one expert's tokens is held at a time.
template <class S> DEVICE void multiply_up_in_turns(Ring<S> &ring, const Work<S> &work, const Chosen *chosen,
                                                    const Normed<S> &normed, char *x, float *units) {
    int warp = threadIdx.x / 32;
    char *bytes = x + warp * S::BYTES_EACH;
    units += warp * TOKENS;
    for (int number = 0; number < work.total;) {
        int place = work.at(number).strip / Up<S>::STRIPS;
        normed.hold(chosen, place, bytes, units);
        WITH_WIDTH(width_of(chosen, place),
                   (number = multiply_expert<S, WIDTH>(ring, number, work, chosen, place, bytes, units)))
    }
}

// The storer's part: one piece, and the main loop over all pieces.
template <class S, class Inner>
DEVICE void store_up(Ring<S> &ring, int number, int strip, const Up<S, Inner> &up) {
    float sum[S::VALUES];
    const u16 *bias = ring.bias(number);
    ring.wait(ring.done, number);
    ring.add_up(number, sum, 16 * width_of(up.chosen, strip / up.STRIPS));
    up.store(strip, bias, sum);
    ring.arrive(ring.free, number);
}
template <class S> DEVICE void store_up(Ring<S> &ring, const Work<S> &work, const Up<S> &up) {
    for (int number = 0; number < work.total; number++) store_up<S>(ring, number, work.at(number).strip, up);
}
