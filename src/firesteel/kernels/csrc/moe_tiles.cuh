#pragma once
// The tiles of the experts' rows and tokens, listed by every CTA from the number of tokens of each expert. Those with
// most tokens come first; so the CTAs end together, and one loop after another handles each width.
#include "scan.cuh"

constexpr int E = EXPERTS, STRIP = STRIP_BLOCKS, STRIPS = (NUM_ROWS / 64 + STRIP - 1) / STRIP;
constexpr int ALL_WIDTHS[] = {WIDTHS};  // numbers of tokens that are multiplied at a time, descending
constexpr int NUM_WIDTHS = sizeof(ALL_WIDTHS) / sizeof(int), WIDEST = ALL_WIDTHS[0];

// Consecutive places of an expert, and STRIP blocks of 64 rows.
struct Tile {
    int expert, strip, first, count;
};

// How an expert's places are divided: into as few ranges as possible, of equal size but for the last one.
struct Ranges {
    int number, each;
    __device__ __forceinline__ explicit Ranges(int count) {
        number = (count + WIDEST - 1) / WIDEST;
        each = number ? ((count + number - 1) / number + 7) / 8 * 8 : 0;
    }
    // Index of the narrowest width that is enough.
    __device__ __forceinline__ int width() const {
        int index = 0;
#pragma unroll
        for (int i = 1; i < NUM_WIDTHS; i++) index += each <= ALL_WIDTHS[i];
        return index;
    }
};

struct Tiles {
    int ends[NUM_WIDTHS];                  // of the tiles of each width
    int before[E + 1];                     // ranges of the experts before, in order of width
    int experts[E], starts[E], counts[E];  // in order of width

    // By one warp.
    __device__ __forceinline__ void list(const int *all_starts, const int *all_counts) {
        constexpr int OWN = (E + 31) / 32;
        int lane = threadIdx.x % 32, count[OWN], start[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            int expert = lane * OWN + i;
            count[i] = expert < E ? all_counts[expert] : 0, start[i] = expert < E ? all_starts[expert] : 0;
        }
        for (int i = lane; i <= E; i += 32) before[i] = 1 << 24;
        __syncwarp();
        int known = 0, ranges = 0;  // experts and their ranges, of wider tiles
        for (int width = 0; width < NUM_WIDTHS; width++) {
            int own = 0;
#pragma unroll
            for (int i = 0; i < OWN; i++)
                if (count[i] && Ranges(count[i]).width() == width) own += 1 << 16 | Ranges(count[i]).number;
            int all = inclusive_scan(own), at = known + (all - own >> 16), range = ranges + (all - own & 0xFFFF);
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                if (!count[i] || Ranges(count[i]).width() != width) continue;
                before[at] = range, experts[at] = lane * OWN + i, starts[at] = start[i], counts[at] = count[i];
                at++, range += Ranges(count[i]).number;
            }
            int sum = __shfl_sync(~0u, all, 31);
            known += sum >> 16, ranges += sum & 0xFFFF;
            if (lane == 0) ends[width] = ranges * STRIPS;
        }
        if (lane == 0) before[known] = ranges;
    }
    __device__ __forceinline__ int total() const { return ends[NUM_WIDTHS - 1]; }
    // By a whole warp. The ranges of an expert come first, then its strips: CTAs that read the same weights run
    // together.
    __device__ __forceinline__ Tile find(int item) const {
        int at = 0, lane = read_thread() % 32;
#pragma unroll
        for (int i = 0; i < E; i += 32) {
            int other = i + lane;
            at += __popc(__ballot_sync(~0u, other < E && before[min(other, E - 1) + 1] * STRIPS <= item));
        }
        Ranges ranges(counts[at]);
        int left = item - before[at] * STRIPS, first = left % ranges.number * ranges.each;
        return {experts[at], left / ranges.number, starts[at] + first, min(ranges.each, counts[at] - first)};
    }
};
