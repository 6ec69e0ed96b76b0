// Argmax token of each row, and the next step's inputs: id, position, slots and embedding.
#include "primitives.cuh"

constexpr int H = HIDDEN, WARPS = 16;

DEVICE long long find_slot(const long long *table, int width, int token, long long position, int page_size) {
    int page = min((int)(position / page_size), width - 1);
    return table[(u64)token * width + page] * page_size + position % page_size;
}

// `best` is [ctas, num_tokens]; the page tables are [num_tokens, full_width] and [num_tokens, window_width].
extern "C" __global__ void
__launch_bounds__(WARPS * 32)
decode_sample(const long long *best, const u16 *embedding, long long *token_ids, long long *positions,
              long long *kv_lens, long long *num_stored, long long *full_slots, long long *window_slots, const long long *full_table,
              const long long *window_table, u16 *r, float *largest, int ctas, int page_size, int full_width,
              int window_width) {
    __shared__ long long tops[WARPS];
    int token = blockIdx.x, num_tokens = gridDim.x;
    launch_dependents();
    wait_for_inputs();
    long long top = (long long)(1ull << 63);
    for (int i = threadIdx.x; i < ctas; i += WARPS * 32) top = max(top, best[i * num_tokens + token]);
    for (int i = 16; i; i /= 2) top = max(top, __shfl_xor_sync(~0u, top, i));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) top = max(top, tops[w]);
    u32 id = ~(u32)top;
    random_delay();
    for (int i = threadIdx.x; i < H / 8; i += WARPS * 32)
        ((uint4 *)(r + token * H))[i] = ((const uint4 *)(embedding + (u64)id * H))[i];
    if (threadIdx.x == 0) {
        long long position = positions[token] + 1;
        token_ids[token] = id;
        int bits = (int)(top >> 32);
        largest[token] = __int_as_float(bits < 0 ? bits ^ 0x7FFFFFFF : bits);
        positions[token] = position;
        kv_lens[token] = position + 1;
        num_stored[token]++;
        full_slots[token] = find_slot(full_table, full_width, token, position, page_size);
        window_slots[token] = find_slot(window_table, window_width, token, position, page_size);
    }
}
