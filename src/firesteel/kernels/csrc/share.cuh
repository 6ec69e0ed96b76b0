#pragma once
// How the strips of all chosen experts are shared out by what they cost, each program's in a row; knows no matmul.
#include "ring.cuh"
#include "scan.cuh"

// Where a program's strips begin, and where the next one's do.
struct Bounds {
    int begin, end;
};

// Of a strip that so many tokens want, in sixteenths of one's: as measured on an H200, where one's wait for memory.
DEVICE int cost_of(int wanted) { return wanted == 1 ? 16 : wanted == 2 ? 17 : wanted <= 4 ? 19 : 32; }

// By a warp. `places` are experts, or parts of their tokens, of STRIPS strips each; `wanted(place)` tokens want one.
// A strip is the program's in whose part of the whole cost it begins.
template <int STRIPS, int MOST_PLACES, class Wanted> DEVICE Bounds share_out(int places, Wanted wanted) {
    constexpr int OWN = (MOST_PLACES + 31) / 32;
    int first = threadIdx.x % 32 * OWN, cost[OWN], own = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) own += cost[i] = first + i < places ? cost_of(wanted(first + i)) : 0;
    int up_to = sum_up_to(own), all = __shfl_sync(~0u, up_to, 31), found[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int target = (int)((u64)(all * STRIPS) * (blockIdx.x + side) / gridDim.x), before = (up_to - own) * STRIPS;
        found[side] = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            int left = target - before;
            if (cost[i] && left > 0) found[side] += min(STRIPS, (left + cost[i] - 1) / cost[i]);
            before += cost[i] * STRIPS;
        }
        found[side] = sum_of_all(found[side]);
    }
    return {found[0], found[1]};
}

// A program's strips follow each other, so that mostly the same tokens meet them.
template <int STRIPS> struct Share {
    int begin, total;
    __device__ __forceinline__ Share(const Bounds &bounds) : begin(bounds.begin), total(bounds.end - bounds.begin) {}
    __device__ __forceinline__ Piece at(int number) const { return {begin + number, 0, true, false, false}; }
    __device__ __forceinline__ int place(int number) const { return (begin + number) / STRIPS; }
    __device__ __forceinline__ int strip(int number) const { return (begin + number) % STRIPS; }
    // The number after the last strip of a place.
    __device__ __forceinline__ int end(int place) const { return min(total, (place + 1) * STRIPS - begin); }
};
