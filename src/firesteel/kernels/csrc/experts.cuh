#pragma once
// What fc1 and fc2 of the experts share: sizes, and fragments of the few tokens that use an expert.
#include "choose.cuh"
#include "multiply.cuh"
#include "normalise.cuh"

constexpr int H = HIDDEN, I = INTERMEDIATE;
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
