#pragma once
// Sizes of the experts, and the few tokens that want one of them; knows neither matmul.
#include "choose.cuh"
#include "multiply.cuh"
#include "normalise.cuh"

constexpr int H = HIDDEN, I = INTERMEDIATE;
struct Early {
    float added[(16 * TOKENS + 31) / 32], old[(16 * TOKENS + 31) / 32];
};

// Of TOKENS tokens mostly one wants an expert: its rows are multiplied by as many as do, rounded up. Their sums lie
// [16][width] in the ring's stage.
DEVICE int width_of(const Chosen *chosen, int place) {
    int wanted = TOKENS == 1 ? 1 : chosen->wanted[place];
    return wanted <= 2 ? wanted : wanted <= 4 ? 4 : 8;
}
// Which row and which of an expert's tokens the sum at `at` is of.
struct RowOf {
    int row, which;
    __device__ __forceinline__ RowOf(int at, int width) : row(at >> (__ffs(width) - 1)), which(at & (width - 1)) {}
};
// Of the finishers.
template <class S> DEVICE int finisher() { return threadIdx.x / 32 - S::FINISHER; }
// Calls CALL with WIDTH, the width, known to the compiler.
#define WITH_WIDTH(width, CALL)                                                                                        \
    if (TOKENS == 1 || (width) == 1) { constexpr int WIDTH = 1; CALL; }                                                \
    else if (TOKENS == 2 || (width) == 2) { constexpr int WIDTH = 2 < TOKENS ? 2 : TOKENS; CALL; }                     \
    else if (TOKENS == 4 || (width) == 4) { constexpr int WIDTH = 4 < TOKENS ? 4 : TOKENS; CALL; }                     \
    else { constexpr int WIDTH = TOKENS; CALL; }
template <class S, int WIDTH> using Narrow = Stream<S::FP4, S::K, S::CHUNKS, S::WARPS, S::STAGES, WIDTH>;
// What a warp needs of the tokens that want expert `place`: `bytes(i)` and `unit(i)` are those of the i-th.
template <class S, class BytesOf, class UnitOf>
DEVICE void take_wanted(const Chosen *chosen, int place, BytesOf bytes, UnitOf unit, Own<S> &own) {
    int wanted = TOKENS == 1 ? 1 : chosen->wanted[place];
#pragma unroll
    for (int set = 0; set < S::SETS; set++) {
        take_bytes<S>(set, [&](int i) { return i < wanted ? bytes(i) : nullptr; }, own.b[set], own.minus[set]);
        int mine = token_of<S>(set);
        own.unit[set] = mine < wanted ? unit(mine) : 0.f;
    }
}
