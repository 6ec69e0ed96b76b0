#pragma once
// The multiplying warps of a dense layer, whatever its weights are held in; knows no layer.
#include "multiply_bf16.cuh"
#include "multiply_fp4.cuh"

// The multiplying warps' whole work on dense weights.
template <class S, class Pieces> DEVICE void multiply_all(Ring<S> &ring, const Pieces &work, char *x) {
    if constexpr (S::FP4) {
        Own<S> own;
        take_x<S>(x, own);
        for (int number = 0; number < work.total; number++) {
            float c[S::SETS][2];
            multiply_codes<S>(ring, number, own, c);
            leave_codes<S>(ring, number, c);
            ring.tell(ring.done, number);
        }
    } else {
        float c[4] = {0, 0, 0, 0};
        for (int number = 0; number < work.total; number++) {
            auto piece = work.at(number);
            multiply_wide<S>(ring, number, piece.chunk, x, c);
            if (piece.ends) {
                leave_wide<S>(ring, number, c);
                c[0] = c[1] = c[2] = c[3] = 0;
            }
            ring.tell(ring.done, number);
        }
    }
}
