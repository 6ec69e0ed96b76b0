// Sorts the pairs of tokens and experts by expert. The pairs of an expert keep their order and take consecutive places,
// from a multiple of 8 on. A CTA places a chunk of the pairs, one per thread, and counts all others.
#include "scan.cuh"

constexpr int E = EXPERTS, WARPS = 32, THREADS = 32 * WARPS, OWN = (E + 31) / 32;

DEVICE int read_expert(const long long *ids, int pair, int num_pairs) {
    long long id = pair < num_pairs ? ids[pair] : -1;
    return id < 0 ? -1 : (int)id;
}

// ids and weights are [pairs]. `places` [pairs] receives where each pair is, `order` and `sorted_weights` [places] the
// pair that has a place and its weight, `starts` and `counts` [E] each expert's first place and number of pairs.
extern "C" __global__ void
__launch_bounds__(THREADS) moe_place(const long long *ids, const float *weights, int *places, int *order,
                                     float *sorted_weights, int *starts, int *counts, int num_pairs) {
    __shared__ int before[WARPS][E];  // pairs of an expert in this warp, then in the chunks and warps before it
    __shared__ int earlier[E], later[E], begin[E];  // pairs in other chunks; first places
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = blockIdx.x * THREADS + threadIdx.x;
    for (int i = lane; i < E; i += 32) before[warp][i] = 0;
    for (int i = threadIdx.x; i < E; i += THREADS) earlier[i] = later[i] = 0;
    launch_dependents();
    wait_for_inputs();
    __syncthreads();
    int expert = read_expert(ids, pair, num_pairs);
#pragma unroll 4
    for (int chunk = 0; chunk < (int)gridDim.x; chunk++) {
        int other = chunk == blockIdx.x ? -1 : read_expert(ids, chunk * THREADS + threadIdx.x, num_pairs);
        if (other >= 0) add_shared((chunk < blockIdx.x ? earlier : later) + other, 1);
    }
    u32 same = __match_any_sync(~0u, expert), first = same & (1u << lane) - 1;
    if (expert >= 0 && !first) before[warp][expert] = __popc(same);
    __syncthreads();
    for (int i = threadIdx.x; i < E; i += THREADS) {
        int sum = earlier[i];
        for (int j = 0; j < WARPS; j++) {
            int count = before[j][i];
            before[j][i] = sum;
            sum += count;
        }
        begin[i] = sum + later[i];
    }
    __syncthreads();
    if (warp == 0) {
        int mine = 0;
        for (int i = 0; i < OWN; i++)
            if (lane * OWN + i < E) mine += (begin[lane * OWN + i] + 7) / 8 * 8;
        int at = inclusive_scan(mine) - mine;
        for (int i = 0; i < OWN; i++) {
            int own = lane * OWN + i;
            if (own >= E) break;
            int count = begin[own];
            begin[own] = at;
            if (blockIdx.x == 0) starts[own] = at, counts[own] = count;
            at += (count + 7) / 8 * 8;
        }
    }
    __syncthreads();
    if (expert < 0) return;
    int place = begin[expert] + before[warp][expert] + __popc(first);
    places[pair] = place, order[place] = pair, sorted_weights[place] = weights[pair];
}
