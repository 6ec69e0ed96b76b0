// One query a request over paged keys and values, with sinks; the programs of a cluster share a kv head's tokens.
#include "primitives.cuh"

constexpr int WARPS = NUM_WARPS, CLUSTER = CLUSTER_SIZE, D = HEAD_DIM, THREADS = WARPS * 32;
constexpr int GROUP = HEADS / KV_HEADS;  // query heads of a kv head
constexpr int COLUMNS = 8;               // of the product; those beyond GROUP hold zeros
static_assert(GROUP <= COLUMNS && D == 64, "up to 8 heads of 64 share a kv head");
constexpr int MINE = (GROUP + CLUSTER - 1) / CLUSTER;       // each program ends so many heads
constexpr int VALUES = (MINE * D + THREADS - 1) / THREADS;  // of them a thread's
constexpr float TO_LOG2 = 1.4426950408889634f;
constexpr float NOTHING = -1e30f;  // below every score, and differences of two are finite

DEVICE float other_program(const float *p, u32 rank) {
    u32 there;
    float x;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
    return x;
}
DEVICE u32 transpose(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
struct Tile {
    uint4 of[2][2];  // tokens g and g + 8, 16 d of lane t
    __device__ __forceinline__ void read(const u16 *pages, const u32 *rows) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 *from = (const uint4 *)(pages + (u64)rows[half] * D + threadIdx.x % 4 * 16);
            of[half][0] = from[0], of[half][1] = from[1];
        }
    }
};
DEVICE void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// `mixed` is [requests, HEADS HEAD_DIM]; `window` 0: all tokens are seen; `sinks` may be null.
extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS_PER_SM)
decode_attention(const u16 *q, const u16 *k_pages, const u16 *v_pages, const u16 *sinks,
                 const long long *page_table, const long long *kv_lens, u16 *mixed, float scale, int page_size,
                 int table_width, int window) {
    __shared__ float tops[WARPS][COLUMNS], sums[WARPS][COLUMNS], parts[WARPS][D][COLUMNS + 1];
    __shared__ float top_here[COLUMNS], sum_here[COLUMNS], part_here[D][COLUMNS + 1], sink_of[COLUMNS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int rank = blockIdx.x, head = blockIdx.y, request = blockIdx.z;
    let_next_start();
    // Before the inputs are there: lengths, page table and all tokens but the newest are of earlier steps, and the
    // kernel ahead lets this one start after its own wait only. The newest is read after the wait.
    int end = (int)kv_lens[request], begin = window ? max(0, end - window) : 0;
    const long long *table = page_table + (u64)request * table_width;
    auto locate = [&](int token, int last, u32 *rows) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int one = min(token + half * 8 + g, last);
            rows[half] = ((u32)table[one / page_size] * KV_HEADS + head) * page_size + one % page_size;
        }
    };
    auto read = [&](int token, int last, Tile &keys, Tile &values) {
        u32 rows[2];
        locate(token, last, rows);
        keys.read(k_pages, rows), values.read(v_pages, rows);
    };
    constexpr int STEP = CLUSTER * WARPS * 16;
    int first = begin + (rank * WARPS + warp) * 16;
    Tile keys, values, next_keys, next_values;
    if (first < end - 1) read(first, end - 2, keys, values);
    if (first + STEP < end - 1) read(first + STEP, end - 2, next_keys, next_values);
    if (threadIdx.x < GROUP)
        sink_of[threadIdx.x] = sinks ? wide(sinks[head * GROUP + threadIdx.x]) * TO_LOG2 : NOTHING;
    wait_for_inputs();
    uint4 query[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (g < GROUP) {
        const uint4 *at = (const uint4 *)(q + ((u64)request * HEADS + head * GROUP + g) * D + t * 16);
        query[0] = at[0], query[1] = at[1];
    }
    const u32 *qs = (const u32 *)query;
    if (first < end && first + 16 >= end) read(first, end - 1, keys, values);
    if (first + STEP < end && first + STEP + 16 >= end) read(first + STEP, end - 1, next_keys, next_values);
    float top[2] = {NOTHING, NOTHING}, sum[2] = {0, 0};  // heads 2t and 2t + 1
    float part[4][4] = {};  // 16 d each: rows g and g + 8, heads 2t and 2t + 1
    const float to_log2 = scale * TO_LOG2;
#pragma unroll 1
    for (int token = first; token < end; token += STEP) {
        bool goes_on = token + 2 * STEP < end;
        u32 rows[2];
        if (goes_on) locate(token + 2 * STEP, end - 1, rows);
        float s[4] = {0, 0, 0, 0};
        const u32 *k0 = (const u32 *)keys.of[0], *k1 = (const u32 *)keys.of[1];
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_add(s, k0[2 * i], k1[2 * i], k0[2 * i + 1], k1[2 * i + 1], qs[2 * i], qs[2 * i + 1]);
        keys = next_keys;
        if (goes_on) next_keys.read(k_pages, rows);
        // s: token g (and g + 8) of heads 2t, 2t + 1
        bool seen0 = token + g < end, seen1 = token + g + 8 < end;
        float keep[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            s[j] = seen0 ? s[j] * to_log2 : NOTHING, s[j + 2] = seen1 ? s[j + 2] * to_log2 : NOTHING;
            float largest = fmaxf(s[j], s[j + 2]);
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 4));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 8));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 16));
            largest = fmaxf(top[j], largest);
            keep[j] = exp2f(top[j] - largest);
            top[j] = largest;
            s[j] = seen0 ? exp2f(s[j] - largest) : 0.f, s[j + 2] = seen1 ? exp2f(s[j + 2] - largest) : 0.f;
            sum[j] = sum[j] * keep[j] + s[j] + s[j + 2];
        }
#pragma unroll
        for (int i = 0; i < 8; i++) part[i / 2][i % 2 * 2] *= keep[0], part[i / 2][i % 2 * 2 + 1] *= keep[1];
        u32 b0 = transpose(narrow_pair(s[0], s[1])), b1 = transpose(narrow_pair(s[2], s[3]));
        // word j of a lane holds d = 16 t + 2 j and the next of its token; transposed, of row c:
        // 16 (c / 2) + 2 j + c % 2
        const u32 *v0 = (const u32 *)values.of[0], *v1 = (const u32 *)values.of[1];
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_add(part[i], transpose(v0[2 * i]), transpose(v0[2 * i + 1]), transpose(v1[2 * i]),
                         transpose(v1[2 * i + 1]), b0, b1);
        values = next_values;
        if (goes_on) next_values.read(v_pages, rows);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int i = 4; i < 32; i *= 2) sum[j] += __shfl_xor_sync(~0u, sum[j], i);
        if (g == 0) tops[warp][2 * t + j] = top[j], sums[warp][2 * t + j] = sum[j];
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int d = 16 * (g / 2) + 2 * (2 * i + c / 2) + g % 2;  // rows g + 8 are the next word
            parts[warp][d][2 * t + c % 2] = part[i][c];
        }
    __syncthreads();
    for (int at = threadIdx.x; at < COLUMNS * D; at += THREADS) {
        int h = at % COLUMNS, d = at / COLUMNS;
        float largest = tops[0][h], total = 0, value = 0;
#pragma unroll
        for (int w = 1; w < WARPS; w++) largest = fmaxf(largest, tops[w][h]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float share = exp2f(tops[w][h] - largest);
            total += share * sums[w][h], value += share * parts[w][d][h];
        }
        if (d == 0) top_here[h] = largest, sum_here[h] = total;
        part_here[d][h] = value;
    }
    dawdle();
    if (CLUSTER > 1) meet_cluster();
    else __syncthreads();
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int at = threadIdx.x + i * THREADS, h = rank * MINE + at / D, d = at % D;
        if (at >= MINE * D || h >= GROUP) break;
        float sink = sink_of[h], largest = sink, total = 0, value = 0, theirs[CLUSTER];
#pragma unroll
        for (int c = 0; c < CLUSTER; c++) {
            theirs[c] = CLUSTER > 1 ? other_program(&top_here[h], c) : top_here[h];
            largest = fmaxf(largest, theirs[c]);
        }
#pragma unroll
        for (int c = 0; c < CLUSTER; c++) {
            float share = exp2f(theirs[c] - largest);
            total += share * (CLUSTER > 1 ? other_program(&sum_here[h], c) : sum_here[h]);
            value += share * (CLUSTER > 1 ? other_program(&part_here[d][h], c) : part_here[d][h]);
        }
        total += exp2f(sink - largest);
        mixed[((u64)request * HEADS + head * GROUP + h) * D + d] = narrow(value / total);
    }
    if (CLUSTER > 1) meet_cluster();  // what others still read stays
}
