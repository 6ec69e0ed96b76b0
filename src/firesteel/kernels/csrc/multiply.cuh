#pragma once
// The consumers' main loop for dense weights, FP4 or BF16.
#include "multiply_bf16.cuh"
#include "multiply_fp4.cuh"
#include "normalise.cuh"

template <class S, class Pieces>
DEVICE void multiply_loaded(Ring<S> &ring, const Pieces &work, const Fragments<S> &own) {
    for (int number = 0; number < work.total; number++) {
        float c[S::SETS][2];
        multiply_fp4<S>(ring, number, own, c);
        write_sums_fp4<S>(ring, number, c);
        ring.arrive(ring.done, number);
    }
}
template <class S, class Pieces> DEVICE void multiply_all(Ring<S> &ring, const Pieces &work, char *x) {
    if constexpr (S::FP4) {
        Fragments<S> own;
        load_x<S>(x, own);
        multiply_loaded<S>(ring, work, own);
    } else {
        float c[4] = {0, 0, 0, 0};
        for (int number = 0; number < work.total; number++) {
            auto piece = work.at(number);
            multiply_bf16<S>(ring, number, piece.chunk, x, c);
            if (piece.ends) {
                write_sums_bf16<S>(ring, number, c);
                c[0] = c[1] = c[2] = c[3] = 0;
            }
            ring.arrive(ring.done, number);
        }
    }
}

// The consumers' part of kernels that multiply the norm of r [num_tokens][K]. If shared memory holds x of four of eight
// tokens only, the second four follow when the first four are in registers.
template <class S, class Pieces>
DEVICE void multiply_normed(Ring<S> &ring, const Pieces &work, const u16 *r,
                            const NormWeights<S::K, S::CONSUMERS> &weights, float eps, char *x, float *scratch,
                            int num_tokens) {
    if constexpr (NUM_HELD == S::TOKENS) {
        normalise<S::K, S::CONSUMERS, S::TOKENS, S::X_STRIDE>(r, weights, eps, x, scratch, num_tokens);
        multiply_all<S>(ring, work, x);
    } else {
        static_assert(S::FP4 && NUM_HELD == 4 && S::TOKENS == 8, "two sets of tokens, which stay in registers");
        Fragments<S> own;
        normalise<S::K, S::CONSUMERS, 4, S::X_STRIDE>(r, weights, eps, x, scratch, num_tokens);
        load_x<S, 0, 4>(x, own);
        // x is written again after a barrier inside, which no warp reaches before it has loaded its fragments
        normalise<S::K, S::CONSUMERS, 4, S::X_STRIDE>(r + 4 * S::K, weights, eps, x, scratch, num_tokens - 4);
        load_x<S, 4, 8>(x, own);
        negate<S>(own);
        multiply_loaded<S>(ring, work, own);
    }
}
