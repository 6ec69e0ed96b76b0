#pragma once
// What fc1 and fc2 of the experts share: sizes, and fragments of the few tokens that use an expert.
#include "choose.cuh"
#include "multiply.cuh"

constexpr int H = HIDDEN, I = INTERMEDIATE;
// Whether shared memory holds rows of x for one expert's tokens at a time, not for all tokens.
constexpr bool IN_TURNS = NUM_HELD < TOKENS;
static_assert(!IN_TURNS || NUM_HELD == WIDEST, "room for the tokens of an expert");
struct Prefetched {
    float added[(16 * TOKENS + 31) / 32], old[(16 * TOKENS + 31) / 32];
};

// Most experts are used by one token only, so an expert's rows are multiplied by as many tokens as use it, rounded up
// to a power of two (the width). The sums of a stage are laid out [16][width].
DEVICE int width_of(const Chosen *chosen, int place) {
    int wanted = TOKENS == 1 ? 1 : chosen->wanted[place];
    return wanted <= 2 ? wanted : wanted <= 4 ? 4 : 8;
}
// Runs CALL with the width as the constant WIDTH.
#define WITH_WIDTH(width, CALL)                                                                                        \
    if (TOKENS == 1 || (width) == 1) {                                                                                 \
        constexpr int WIDTH = 1;                                                                                       \
        CALL;                                                                                                          \
    } else if (TOKENS == 2 || (width) == 2) {                                                                          \
        constexpr int WIDTH = 2 < TOKENS ? 2 : TOKENS;                                                                 \
        CALL;                                                                                                          \
    } else if (TOKENS == 4 || WIDEST == 4 || (width) == 4) {                                                           \
        constexpr int WIDTH = 4 < TOKENS ? 4 : TOKENS;                                                                 \
        CALL;                                                                                                          \
    } else {                                                                                                           \
        constexpr int WIDTH = TOKENS;                                                                                  \
        CALL;                                                                                                          \
    }
template <class S, int WIDTH> using Narrow = Stream<S::FP4, S::K, S::CHUNKS, S::WARPS, S::STAGES, WIDTH>;
// Loads a warp's fragments of the tokens that use expert `place`; `bytes(i)` and `unit(i)` belong to the i-th of them.
template <class S, class BytesOf, class UnitOf>
DEVICE void load_wanted(const Chosen *chosen, int place, BytesOf bytes, UnitOf unit, Fragments<S> &own) {
    int wanted = TOKENS == 1 ? 1 : chosen->wanted[place];
#pragma unroll
    for (int set = 0; set < S::SETS; set++) {
        load_bytes<S>(set, [&](int i) { return i < wanted ? bytes(i) : nullptr; }, own.b[set], own.minus[set]);
        int mine = token_of<S>(set);
        own.unit[set] = mine < wanted ? unit(mine) : 0.f;
    }
}

// The norm of r [num_tokens][H], computed when a warp needs its columns of a token.
template <class S> struct Normed {
    const u16 *r;
    Pairs<S> weights;
    float inverse;  // 1 / rms of token `lane`
    __device__ __forceinline__ Normed(const u16 *r, const u16 *norm) : r(r) { weights.read((const char *)norm); }
    // Called by all consumers; `scratch` [TOKENS][WARPS] is free again when all of them have returned.
    __device__ __forceinline__ void start(float eps, float *scratch, int num_tokens) {
        normalise<H, S::CONSUMERS, TOKENS, 0, true>(r, nullptr, eps, nullptr, scratch, num_tokens);
        inverse = inverse_rms<H, S::WARPS>(scratch, threadIdx.x % 32 % TOKENS, eps);
    }
    // Called by a whole warp: quantises its columns of the tokens that use expert `place`, row by row.
    __device__ __forceinline__ void hold(const Chosen *chosen, int place, char *bytes, float *units) const {
        __syncwarp();  // all lanes have loaded the previous rows
        for (int i = 0; i < chosen->wanted[place]; i++) {
            int token = chosen->token[place][i];
            float by = __shfl_sync(~0u, inverse, token);
            Pairs<S> row;
            row.read((const char *)(r + token * H));
#pragma unroll
            for (int j = 0; j < Pairs<S>::COUNT; j++) row.of[j] = scale_pair(row.of[j], by, weights.of[j]);
            float unit = split_bytes<S>(row, bytes + i * S::X_STRIDE);
            if (threadIdx.x % 32 == 0) units[i] = unit;
        }
        __syncwarp();
    }
};
