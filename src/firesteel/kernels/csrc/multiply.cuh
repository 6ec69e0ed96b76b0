#pragma once
// The multiplying warps of a dense layer, whatever its weights are held in; knows no layer.
#include "multiply_bf16.cuh"
#include "multiply_fp4.cuh"

// The multiplying warps' whole work on dense weights: `count` strips.
template <class S> DEVICE void multiply_all(Ring<S> &ring, int count, char *x) {
    if constexpr (S::FP4) {
        Own<S> own;
        take_x<S>(x, own);
        for (int number = 0; number < count; number++) {
            float c[S::SETS][2];
            multiply_codes<S>(ring, number, own, c);
            leave_codes<S>(ring, number, c);
            ring.done(number);
        }
    } else {
        for (int strip = 0, number = 0; strip < count; strip++) {
            float c[4] = {0, 0, 0, 0};
            for (int chunk = 0; chunk < S::CHUNKS; chunk++, number++) {
                multiply_wide<S>(ring, number, x, c);
                if (chunk == S::CHUNKS - 1) leave_wide<S>(ring, number, c);
                ring.done(number);
            }
        }
    }
}
