#pragma once
// Partitions the strips of all chosen experts among CTAs by cost; each CTA gets consecutive strips.
#include "ring.cuh"
#include "scan.cuh"

// The half-open range of a CTA's strips.
struct Bounds {
    int begin, end;
};

// Cost of a strip that `wanted` tokens use, in sixteenths of the cost for one token; measured on an H200, where a strip
// for one token is bound by memory.
DEVICE int cost_of(int wanted) { return wanted == 1 ? 16 : wanted == 2 ? 17 : wanted <= 4 ? 19 : 32; }

// Called by a whole warp. A place is an expert, or one of several groups of an expert's tokens; it has STRIPS strips,
// and `wanted(place)` tokens use it. The total cost is divided evenly; a strip belongs to the CTA in whose range it
// begins.
template <int STRIPS, int MOST_PLACES, class Wanted> DEVICE Bounds partition_by_cost(int places, Wanted wanted) {
    constexpr int OWN = (MOST_PLACES + 31) / 32;
    int first = threadIdx.x % 32 * OWN, cost[OWN], own = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) own += cost[i] = first + i < places ? cost_of(wanted(first + i)) : 0;
    int up_to = inclusive_scan(own), all = __shfl_sync(~0u, up_to, 31), bound[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int target = (int)((u64)(all * STRIPS) * (blockIdx.x + side) / gridDim.x), before = (up_to - own) * STRIPS;
        bound[side] = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            int left = target - before;
            if (cost[i] && left > 0) bound[side] += min(STRIPS, (left + cost[i] - 1) / cost[i]);
            before += cost[i] * STRIPS;
        }
        bound[side] = warp_total(bound[side]);
    }
    return {bound[0], bound[1]};
}

// A CTA's strips are consecutive, so that most of them use the same tokens.
template <int STRIPS> struct Share {
    int begin, total;
    __device__ __forceinline__ Share(const Bounds &bounds) : begin(bounds.begin), total(bounds.end - bounds.begin) {}
    __device__ __forceinline__ Piece at(int number) const { return {begin + number, 0, true, false, false}; }
    __device__ __forceinline__ int place(int number) const { return (begin + number) / STRIPS; }
    __device__ __forceinline__ int strip(int number) const { return (begin + number) % STRIPS; }
    // One past the last strip number of a place.
    __device__ __forceinline__ int end(int place) const { return min(total, (place + 1) * STRIPS - begin); }
};
