#pragma once
// Groups pairs of a token and an expert by expert, for up to a few hundred pairs.
#include "scan.cuh"

constexpr int E = EXPERTS, A = ACTIVE, PAIRS = MAX_PAIRS, WIDEST = MAX_TOKENS;
constexpr int MOST_PLACES = (PAIRS < E ? PAIRS : E) + PAIRS / WIDEST;
static_assert(PAIRS % 32 == 0, "a warp's lanes take as many");
static_assert(PAIRS < 1 << 15 && E <= 1 << 16, "a rank and an expert share a word");

// Pairs by expert, those of an expert in their order. A place is up to WIDEST of them, all of one expert.
struct Groups {
    int count;  // of places
    int expert[MOST_PLACES];
    int first[MOST_PLACES + 1];  // of a place's pairs
    int pair[PAIRS];
    int starts[E];  // first the number of pairs of each expert, then where they begin

    __device__ __forceinline__ int wanted(int place) const { return first[place + 1] - first[place]; }
};

// By a warp. `ids` [num_pairs]: the expert of each pair; pairs with a negative id are in no place.
DEVICE void group(const long long *ids, int num_pairs, Groups *groups) {
    constexpr int CHUNKS = PAIRS / 32, OWN = (E + 31) / 32;
    int lane = threadIdx.x % 32, expert[CHUNKS];  // and above its 16 bits the rank among the expert's pairs
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int pair = 32 * i + lane;
        long long id = pair < num_pairs ? ids[pair] : -1;
        expert[i] = id < 0 ? -1 : (int)id;
    }
    for (int i = lane; i < E; i += 32) groups->starts[i] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        u32 same = __match_any_sync(~0u, expert[i]), before = same & (1u << lane) - 1;
        int rank = expert[i] < 0 ? 0 : groups->starts[expert[i]] + __popc(before);
        __syncwarp();
        if (expert[i] >= 0 && !before) groups->starts[expert[i]] += __popc(same);
        __syncwarp();
        expert[i] |= rank << 16;
    }
    int pairs = 0, places = 0, of[OWN];  // of this lane's experts
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        of[i] = lane * OWN + i < E ? groups->starts[lane * OWN + i] : 0;
        pairs += of[i], places += (of[i] + WIDEST - 1) / WIDEST;
    }
    int all = inclusive_scan(pairs << 16 | places);  // and of the lanes before it
    int pair = (all >> 16) - pairs, place = (all & 0xFFFF) - places;
    if (lane == 31) groups->count = all & 0xFFFF, groups->first[all & 0xFFFF] = all >> 16;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        if (lane * OWN + i < E) groups->starts[lane * OWN + i] = pair;
        for (int at = 0; at < of[i]; at += WIDEST, place++)
            groups->expert[place] = lane * OWN + i, groups->first[place] = pair + at;
        pair += of[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (expert[i] >= 0) groups->pair[groups->starts[expert[i] & 0xFFFF] + (expert[i] >> 16)] = 32 * i + lane;
    __syncwarp();
}
