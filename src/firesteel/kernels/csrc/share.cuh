#pragma once
// How the strips of all chosen experts are shared out evenly, each program's in a row; knows no matmul.
#include "ring.cuh"

// `places` are experts, or parts of their tokens, of STRIPS strips each. A program's strips follow each other, so that
// mostly the same tokens meet them.
template <int STRIPS> struct Share {
    int begin, total;
    __device__ __forceinline__ Share(int places) {
        int all = places * STRIPS, programs = gridDim.x, number = blockIdx.x;
        begin = all / programs * number + min(number, all % programs);
        total = all / programs + (number < all % programs);
    }
    __device__ __forceinline__ Piece at(int number) const { return {begin + number, 0, true, false, false}; }
    __device__ __forceinline__ int place(int number) const { return (begin + number) / STRIPS; }
    __device__ __forceinline__ int strip(int number) const { return (begin + number) % STRIPS; }
    // The number after the last strip of a place.
    __device__ __forceinline__ int end(int place) const { return min(total, (place + 1) * STRIPS - begin); }
};
