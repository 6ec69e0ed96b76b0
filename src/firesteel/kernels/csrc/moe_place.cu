// Sorts the pairs of tokens and experts by expert. The pairs of an expert keep their order and take consecutive places,
// from a multiple of 8 on. One CTA.
#include "scan.cuh"

constexpr int E = EXPERTS, WARPS = 32, THREADS = 32 * WARPS, AT_ONCE = 4, OWN = (E + 31) / 32;

// Calls take(pair, expert) for this warp's share of the pairs, whole warps at a time; without an expert it is -1.
template <class Take> DEVICE void for_each_pair(const long long *ids, int num_pairs, Take take) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int each = (num_pairs + THREADS - 1) / THREADS * 32, begin = warp * each, end = min(begin + each, num_pairs);
    for (int first = begin; first < end; first += 32 * AT_ONCE) {
        int expert[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int pair = first + 32 * i + lane;
            long long id = pair < end ? ids[pair] : -1;
            expert[i] = id < 0 ? -1 : (int)id;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) take(first + 32 * i + lane, expert[i]);
    }
}

// ids and weights are [pairs]. `places` [pairs] receives where each pair is, `order` and `sorted_weights` [places] the
// pair that has a place and its weight, `starts` and `counts` [E] each expert's first place and number of pairs.
extern "C" __global__ void
__launch_bounds__(THREADS) moe_place(const long long *ids, const float *weights, int *places, int *order,
                                     float *sorted_weights, int *starts, int *counts, int num_pairs) {
    __shared__ int before[WARPS][E], begin[E];  // pairs of an expert in this warp, then in the warps before it
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = lane; i < E; i += 32) before[warp][i] = 0;
    launch_dependents();
    wait_for_inputs();
    __syncwarp();
    for_each_pair(ids, num_pairs, [&](int pair, int expert) {
        u32 same = __match_any_sync(~0u, expert), earlier = same & (1u << lane) - 1;
        int rank = expert < 0 ? 0 : before[warp][expert] + __popc(earlier);
        __syncwarp();
        if (expert >= 0 && !earlier) before[warp][expert] += __popc(same);
        __syncwarp();
        if (expert >= 0) places[pair] = rank;
    });
    __syncthreads();
    for (int expert = threadIdx.x; expert < E; expert += THREADS) {
        int sum = 0;
        for (int i = 0; i < WARPS; i++) {
            int count = before[i][expert];
            before[i][expert] = sum;
            sum += count;
        }
        counts[expert] = begin[expert] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        int mine = 0;
        for (int i = 0; i < OWN; i++)
            if (lane * OWN + i < E) mine += (begin[lane * OWN + i] + 7) / 8 * 8;
        int at = inclusive_scan(mine) - mine;
        for (int i = 0; i < OWN; i++) {
            int expert = lane * OWN + i;
            if (expert >= E) break;
            int count = begin[expert];
            starts[expert] = begin[expert] = at;
            at += (count + 7) / 8 * 8;
        }
    }
    __syncthreads();
    for_each_pair(ids, num_pairs, [&](int pair, int expert) {
        if (expert < 0) return;
        int place = begin[expert] + before[warp][expert] + places[pair];
        places[pair] = place, order[place] = pair, sorted_weights[place] = weights[pair];
    });
}
