// Attention of one query per row of a page table over paged keys and values, with sinks. The tokens of a kv head are
// split among PARTS CTAs; their partial results are combined through cluster shared memory, or through global memory by
// the CTA that finishes last.
#include "primitives.cuh"

#if FP8_PAGES  // keys and values are E4M3, divided by a scale each; `scale` already includes the keys' scale
typedef u8 Held;
#define SCALES , float value_scale
#else
typedef u16 Held;
#define SCALES
#endif

extern __shared__ __align__(128) char shared[];
constexpr int WARPS = NUM_WARPS, PARTS = NUM_PARTS, D = HEAD_DIM, THREADS = WARPS * 32, STAGES = NUM_STAGES;
constexpr bool IN_CLUSTER = PARTS > 1 && !JOINS_IN_MEMORY, IN_MEMORY = PARTS > 1 && JOINS_IN_MEMORY;
constexpr int TILE = 16;                                                           // tokens
constexpr int TILE_BYTES = TILE * D * sizeof(Held), STAGE_BYTES = 2 * TILE_BYTES;  // keys and values
constexpr int GROUP = HEADS / KV_HEADS;                                            // query heads per kv head
constexpr int COLUMNS = 8;  // MMA columns; those beyond GROUP are zero
static_assert(GROUP <= COLUMNS && D == 64, "up to 8 heads of 64 share a kv head");
constexpr int MINE = IN_MEMORY ? GROUP : (GROUP + PARTS - 1) / PARTS;  // heads that a CTA (or the last CTA) combines
constexpr int VALUES = (MINE * D + THREADS - 1) / THREADS;             // output values per thread
constexpr float TO_LOG2 = 1.4426950408889634f;
constexpr float NOTHING = -1e30f;  // below every score, yet differences stay finite
static_assert(D * (COLUMNS + 1) * 4 <= STAGES * STAGE_BYTES, "a warp's partial result reuses the space of its tiles");
static_assert(WARPS * STAGES * STAGE_BYTES == SHARED_BYTES, "as launched");

// Layout of a CTA's partial result, in floats: per head the largest score, then the sum and the mixed values relative
// to it.
constexpr int TOPS = 0, SUMS = COLUMNS, MIXED = 2 * COLUMNS, PART = MIXED + COLUMNS * D;
static_assert(PART == PART_FLOATS, "as allocated");
__device__ u64 arrivals[MOST_REQUESTS * KV_HEADS];  // CTAs that have finished, per kv head; never reset

// Returns true in the last CTA of a kv head to arrive; it may then read what all of them wrote.
DEVICE bool is_last(u64 *counter) {
    __shared__ bool answer;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        answer = atomicAdd(counter, 1ull) % PARTS == PARTS - 1;
        __threadfence();
    }
    __syncthreads();
    return answer;
}

// Combines the partial results into one output value; read(i, c) is float i of CTA c's partial result.
template <class Read> DEVICE float join(int h, int d, float sink, Read read) {
    float largest = sink, total = 0, value = 0, tops[PARTS];
#pragma unroll
    for (int c = 0; c < PARTS; c++) {
        tops[c] = read(TOPS + h, c);
        largest = fmaxf(largest, tops[c]);
    }
#pragma unroll
    for (int c = 0; c < PARTS; c++) {
        float share = exp2f(tops[c] - largest);
        total += share * read(SUMS + h, c), value += share * read(MIXED + h * D + d, c);
    }
    return value / (total + exp2f(sink - largest));
}

// Loads the keys or values of tokens g and g + 8 of a tile for lane t: dims 8 t to 8 t + 7 and 32 + 8 t to 32 + 8 t
// + 7.
#if FP8_PAGES
DEVICE uint4 as_bf16(uint2 eight) {
    return {pair_e4m3(eight.x), pair_e4m3(eight.x >> 16), pair_e4m3(eight.y), pair_e4m3(eight.y >> 16)};
}
// Tokens are 64 bytes apart: every second pair is read in swapped order to avoid bank conflicts.
DEVICE void read_tile(const char *tile, uint4 (*of)[2]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = g / 2 % 2 * 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint2 *token = (const uint2 *)(tile + (g + 8 * half) * D);
        uint2 early = token[t + first], late = token[t + 4 - first];
        of[half][0] = as_bf16(first ? late : early), of[half][1] = as_bf16(first ? early : late);
    }
}
#else
// Tokens are 128 bytes apart: odd ones are read in swapped order to avoid bank conflicts.
DEVICE void read_tile(const char *tile, uint4 (*of)[2]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 *token = (const uint4 *)(tile + (g + 8 * half) * 2 * D);
        uint4 early = token[g % 2 ? t + 4 : t], late = token[g % 2 ? t : t + 4];
        of[half][0] = g % 2 ? late : early, of[half][1] = g % 2 ? early : late;
    }
}
#endif

// `mixed` is [T, HEADS * HEAD_DIM]; `parts` is [T, KV_HEADS, PARTS, PART]. `window` 0 means full
// attention; `sinks` may be null. The page size is a multiple of TILE. Of the tokens that a row sees, those from
// `num_stored` on are written by this step: the row's own, and those of earlier rows of the same request.
extern "C" __global__ void
__launch_bounds__(THREADS, CTAS_PER_SM)
decode_attention(const u16 *q, const Held *k_pages, const Held *v_pages, const u16 *sinks,
                 const long long *page_table, const long long *kv_lens, const long long *num_stored, u16 *mixed,
                 float *parts, float scale, int page_size, int table_width, int window SCALES) {
    __shared__ u64 full[WARPS][STAGES];
    __shared__ float tops[WARPS][COLUMNS], sums[WARPS][COLUMNS];
    __shared__ float sink_of[COLUMNS];
    __shared__ float part_here[IN_MEMORY ? 1 : PART];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int rank = blockIdx.x, head = blockIdx.y, q_row = blockIdx.z;
    char *ring = shared + warp * STAGES * STAGE_BYTES;  // private to this warp
    launch_dependents();
    if (lane == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full[warp] + i, 1);
        barrier_publish();
    }
    __syncwarp();
    // Reads before the wait: lengths, page table and stored tokens were written by earlier steps, and the previous
    // kernel starts this one only after its own wait. Tiles with a token of this step are loaded after the wait.
    int end = (int)kv_lens[q_row], stored = (int)num_stored[q_row];  // tokens
    int begin = window ? max(0, end - window) : 0;
    int first = begin / TILE, count = (end + TILE - 1) / TILE - first;  // tiles
    constexpr int STEP = PARTS * WARPS;
    int own = rank * WARPS + warp, rounds = (count - own + STEP - 1) / STEP;
    auto token_of = [&](int round) { return (first + own + round * STEP) * TILE; };
    u64 rows = 0;  // first row of the tile of round `lane` within the current 32 rounds
    auto locate = [&](int round) {
        int token = token_of(round + lane);
        if (round + lane < rounds)
            rows = ((u64)page_table[(u64)q_row * table_width + token / page_size] * KV_HEADS + head) * page_size +
                   token % page_size;
    };
    auto load = [&](int round) {
        u64 row = __shfl_sync(~0u, rows, round % 32);
        u64 *bar = full[warp] + round % STAGES;
        char *to = ring + round % STAGES * STAGE_BYTES;
        if (lane == 0) {
            barrier_expect(bar, STAGE_BYTES);
            copy_bulk(to, k_pages + row * D, TILE_BYTES, bar);
            copy_bulk(to + TILE_BYTES, v_pages + row * D, TILE_BYTES, bar);
        }
    };
    locate(0);
    // rounds whose tiles hold stored tokens only; not positive if there are none
    int early = min((stored / TILE - first - own + STEP - 1) / STEP, STAGES);
    for (int round = 0; round < early; round++) load(round);
    if (threadIdx.x < GROUP)
        sink_of[threadIdx.x] = sinks ? wide(sinks[head * GROUP + threadIdx.x]) * TO_LOG2 : NOTHING;
    wait_for_inputs();
    for (int round = max(early, 0); round < min(rounds, STAGES); round++) load(round);
    uint4 query[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (g < GROUP) {
        const uint4 *at = (const uint4 *)(q + ((u64)q_row * HEADS + head * GROUP + g) * D);
        query[0] = at[t], query[1] = at[t + 4];
    }
    const u32 *qs = (const u32 *)query;
    float top[2] = {NOTHING, NOTHING}, sum[2] = {0, 0};  // heads 2t and 2t + 1
    float part[4][4] = {};  // 16 dims each: rows g and g + 8, heads 2t and 2t + 1
    const float to_log2 = scale * TO_LOG2;
#pragma unroll 1
    for (int round = 0; round < rounds; round++) {
        const char *tile = ring + round % STAGES * STAGE_BYTES;
        barrier_wait(full[warp] + round % STAGES, round / STAGES & 1);
        uint4 keys[2][2], values[2][2];
        read_tile(tile, keys);
        read_tile(tile + TILE_BYTES, values);
        __syncwarp();
        if (round + STAGES < rounds) {
            if ((round + STAGES) % 32 == 0) locate(round + STAGES);
            load(round + STAGES);
        }
        float s[4] = {0, 0, 0, 0};
        const u32 *k0 = (const u32 *)keys[0], *k1 = (const u32 *)keys[1];
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_add(s, k0[2 * i], k1[2 * i], k0[2 * i + 1], k1[2 * i + 1], qs[2 * i], qs[2 * i + 1]);
        // s: token g (and g + 8) of heads 2t, 2t + 1
        int token = token_of(round) + g;
        bool seen0 = token >= begin && token < end, seen1 = token + 8 >= begin && token + 8 < end;
#pragma unroll
        for (int i = 0; i < 2; i++) {  // unwritten slots may hold NaN
            if (!seen0) values[0][i] = uint4{0, 0, 0, 0};
            if (!seen1) values[1][i] = uint4{0, 0, 0, 0};
        }
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
        // word j of a lane holds dims d and d + 1 of its token, d = 32 (j / 4) + 8 t + 2 (j % 4); after the transpose,
        // row c is dim 32 (j / 4) + 8 (c / 2) + 2 (j % 4) + c % 2
        const u32 *v0 = (const u32 *)values[0], *v1 = (const u32 *)values[1];
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_add(part[i], transpose(v0[2 * i]), transpose(v0[2 * i + 1]), transpose(v1[2 * i]),
                         transpose(v1[2 * i + 1]), b0, b1);
    }
    float (*own_part)[COLUMNS + 1] = (float (*)[COLUMNS + 1])ring;  // [D], reuses the space of the tiles
    __syncwarp();
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
            int j = 2 * i + c / 2;  // rows g + 8 belong to the next word
            own_part[32 * (j / 4) + 8 * (g / 2) + 2 * (j % 4) + g % 2][2 * t + c % 2] = part[i][c];
        }
    __syncthreads();
    auto part_of = [&](int w) { return (const float (*)[COLUMNS + 1])(shared + w * STAGES * STAGE_BYTES); };
    u64 kv_head = (u64)q_row * KV_HEADS + head;
    parts += kv_head * PARTS * PART;
    float *mine = IN_MEMORY ? parts + rank * PART : part_here;
    for (int at = threadIdx.x; at < COLUMNS * D; at += THREADS) {
        int h = at / D, d = at % D;
        float largest = tops[0][h], total = 0, value = 0;
#pragma unroll
        for (int w = 1; w < WARPS; w++) largest = fmaxf(largest, tops[w][h]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float share = exp2f(tops[w][h] - largest);
            total += share * sums[w][h], value += share * part_of(w)[d][h];
        }
        if (d == 0) mine[TOPS + h] = largest, mine[SUMS + h] = total;
        mine[MIXED + at] = value;
    }
    random_delay();
    if (IN_CLUSTER) cluster_sync();
    else if (!IN_MEMORY) __syncthreads();
    else if (!is_last(arrivals + kv_head)) return;
    auto read = [&](int i, int c) {
        if (IN_MEMORY) return parts[c * PART + i];
        return IN_CLUSTER ? load_peer(part_here + i, c) : part_here[i];
    };
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int at = threadIdx.x + i * THREADS, h = (IN_MEMORY ? 0 : rank * MINE) + at / D, d = at % D;
        if (at >= MINE * D || h >= GROUP) break;
        float value = join(h, d, sink_of[h], read);
#if FP8_PAGES
        value *= value_scale;
#endif
        mixed[((u64)q_row * HEADS + head * GROUP + h) * D + d] = narrow(value);
    }
    if (IN_CLUSTER) cluster_sync();  // shared memory must outlive the peers' reads
}
