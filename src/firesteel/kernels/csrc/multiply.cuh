#pragma once
// The consumers' main loop for dense weights, FP4 or BF16.
#include "multiply_bf16.cuh"
#include "multiply_fp4.cuh"

template <class S, class Pieces> DEVICE void multiply_all(Ring<S> &ring, const Pieces &work, char *x) {
    if constexpr (S::FP4) {
        Fragments<S> own;
        load_x<S>(x, own);
        for (int number = 0; number < work.total; number++) {
            float c[S::SETS][2];
            multiply_fp4<S>(ring, number, own, c);
            write_sums_fp4<S>(ring, number, c);
            ring.arrive(ring.done, number);
        }
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
