#pragma once
// The ring of stages of moe_wgmma: a stage holds 64 columns of a tile's rows and of its tokens. A producer warpgroup
// fills it, consumer warpgroups free it.
#include "moe_tiles.cuh"
#include "swizzle.cuh"

extern __shared__ __align__(1024) char shared[];
#ifndef E4M3_COLUMNS
#define E4M3_COLUMNS 0
#endif
// Columns of the product per token: one in bf16, or several in E4M3 whose sum is the token's.
constexpr int PER_TOKEN = E4M3_COLUMNS ? E4M3_COLUMNS : 1, ROW_BYTES = E4M3_COLUMNS ? 64 * E4M3_COLUMNS : 128;
constexpr int K = NUM_COLUMNS, STEPS = K / 64, GROUPS = K / 32, ALL_BLOCKS = NUM_ROWS / 64;
constexpr int BLOCKS = NUM_BLOCKS, WARPGROUPS = NUM_WARPGROUPS, CONSUMERS = 4 * WARPGROUPS;
constexpr int PRODUCERS = 4, THREADS = 32 * (CONSUMERS + PRODUCERS), STAGES = NUM_STAGES;
// Registers per thread: an SM has 512 for one thread of each warpgroup. Producers leave theirs to the consumers.
constexpr int LAUNCHED_REGISTERS = 512 / (WARPGROUPS + 1) / 8 * 8, FEW_REGISTERS = 32;
constexpr int MANY_REGISTERS = (LAUNCHED_REGISTERS * (WARPGROUPS + 1) - FEW_REGISTERS) / WARPGROUPS / 8 * 8;
constexpr int TOKEN_BYTES = WIDEST * ROW_BYTES, CODE_BYTES = STRIP * 64 * 32;
constexpr int BARRIER_BYTES = (2 * STAGES + 4) * 8;
static_assert(K % 64 == 0 && NUM_ROWS % 64 == 0 && STRIP == WARPGROUPS * BLOCKS, "whole blocks and steps");
static_assert(!IS_UP || E4M3_COLUMNS || STRIP % 2 == 0 && NUM_ROWS % 128 == 0,
              "two blocks make 64 columns of the next matmul");

// What consumers need of a tile beside the stages. Aligned, so that bulk copies can fill it.
struct Strip {
    u8 scales[STRIP * 64 * GROUPS];
    u16 bias[STRIP * 64];
    float weights[IS_UP ? 4 : WIDEST];
    int order[IS_UP ? 4 : WIDEST];
#if E4M3_COLUMNS
    u8 bases[STRIP * 64];  // largest scales of the rows
    float units[WIDEST];   // by place
#endif
};
constexpr int TABLE_BYTES = E4M3_COLUMNS ? 128 : 0;  // of widen_e4m3.cuh
static_assert(total(STAGES *TOKEN_BYTES, STAGES *CODE_BYTES, 2 * sizeof(Strip), BARRIER_BYTES, sizeof(Tiles),
                    TABLE_BYTES) == SHARED_BYTES,
              "as launched");

constexpr int TOGETHER = STEPS_TOGETHER;  // steps that a consumer's loop handles at a time
static_assert(STAGES % TOGETHER == 0 && STEPS % TOGETHER == 0, "so that their stages follow each other");

// Stage of the ring and parity of its barriers, of one step after another.
struct Turn {
    int stage = 0;
    u32 parity = 0;
    __device__ __forceinline__ void advance(int by = TOGETHER) {
        stage += by;
        if (stage == STAGES) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ int last() const { return stage ? stage - 1 : STAGES - 1; }
};

struct Buffers {
    char *tokens, *codes;
    Strip *strips;  // of this tile and of the next
    u64 *full, *free, *strip_full, *strip_free;
    Tiles *tiles;
    uint2 *tables;  // of widen_e4m3.cuh
    __device__ __forceinline__ Buffers() {
        Arena arena{shared};
        tokens = arena.take(STAGES * TOKEN_BYTES);
        codes = arena.take(STAGES * CODE_BYTES);
        strips = (Strip *)arena.take(2 * sizeof(Strip));
        full = (u64 *)arena.take(BARRIER_BYTES);
        free = full + STAGES, strip_full = free + STAGES, strip_free = strip_full + 2;
        tiles = (Tiles *)arena.take(sizeof(Tiles));
        tables = (uint2 *)arena.take(TABLE_BYTES);
    }
    __device__ __forceinline__ void start() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++)
                barrier_init(full + i, 32 * PRODUCERS + 1), barrier_init(free + i, CONSUMERS * ARRIVING);
            for (int i = 0; i < 2; i++)
                barrier_init(strip_full + i, 1), barrier_init(strip_free + i, CONSUMERS * ARRIVING);
            barrier_publish();
        }
    }
};

// Called by a whole warp. Without a branch, across which the compiler would let no wgmma run.
DEVICE void arrive(u64 *bar, bool is_due = true) {
    __syncwarp();
    barrier_arrive_if(bar, is_due && threadIdx.x % 32 < ARRIVING);
}

// Row of its strip that is MMA row `lane / 4` (`is_low`: 8 further) of warp `warp` in block `block`. The two MMA rows
// of a lane are gate and up of one column, or two neighbouring pairs of rows; after a transposition a lane holds what
// is stored side by side.
DEVICE int row_of(int block, int warp, int row, bool is_low) {
    if (IS_UP && E4M3_COLUMNS) return 64 * block + 16 * warp + 2 * row + is_low;
    if (IS_UP) return 128 * (block / 2) + 2 * (8 * (block % 2) + warp + column_at(0, row)) + is_low;
    return 64 * block + 16 * warp + 4 * (row / 2) + row % 2 + 2 * is_low;
}

struct Inputs {
    const u8 *x;
    const float *weights;  // by place
    const int *order;
    const u8 *codes, *scales;
    const u16 *bias;
    int num_places;
#if E4M3_COLUMNS
    const u8 *bases;
    const float *units;  // by place
#endif
};

// By one thread.
DEVICE void load_strip(const Inputs &from, const Tile &tile, u64 row, int blocks, Strip *to, u64 *full) {
    int tokens = (tile.count + 7) / 8 * 8;
    barrier_expect(full, blocks * 64 * (GROUPS + (E4M3_COLUMNS ? 3 : 2)) + (IS_UP ? 0 : 8 * tokens));
    copy_bulk(to->scales, from.scales + row * GROUPS, blocks * 64 * GROUPS, full);
    copy_bulk(to->bias, from.bias + row, blocks * 64 * 2, full);
#if E4M3_COLUMNS
    copy_bulk(to->bases, from.bases + row, blocks * 64, full);
#endif
    if (IS_UP) return;
    copy_bulk(to->weights, from.weights + tile.first, 4 * tokens, full);
    copy_bulk(to->order, from.order + tile.first, 4 * tokens, full);
}

// By the producer warps. Only tokens depend on the kernel before this one.
DEVICE void load_all(Buffers &buffers, const Inputs &inputs) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, taken = 0;
    bool is_first = threadIdx.x % 128 == 0;
    // a lane copies half of the 32 bytes of a row, a warp the 16 rows that a consumer warp multiplies
    u64 own = (u64)row_of(0, warp, lane / 2 % 8, lane >= 16) * (K / 2) + lane % 2 * 16;
    Turn turn;
    for (int item = blockIdx.x; item < buffers.tiles->total(); item += gridDim.x, taken++) {
        Tile tile = buffers.tiles->find(item);
        u64 row = (u64)tile.expert * NUM_ROWS + tile.strip * (STRIP * 64);
        int blocks = min(STRIP, ALL_BLOCKS - tile.strip * STRIP), bytes = (tile.count + 7) / 8 * 8 * ROW_BYTES;
        if (taken >= 2) barrier_wait(buffers.strip_free + taken % 2, taken / 2 - 1 & 1);
        __syncwarp();
        if (is_first) load_strip(inputs, tile, row, blocks, buffers.strips + taken % 2, buffers.strip_full + taken % 2);
        const u8 *codes = inputs.codes + row * (K / 2) + own;
        const u8 *tokens = inputs.x + (u64)tile.first * ROW_BYTES;
        for (int step = 0; step < STEPS;
             step++, codes += 32, tokens += (u64)inputs.num_places * ROW_BYTES, turn.advance(1)) {
            u64 *full = buffers.full + turn.stage;
            barrier_wait(buffers.free + turn.stage, turn.parity ^ 1);
            __syncwarp();
            char *to = buffers.codes + turn.stage * CODE_BYTES + warp * 512 + lane * 16;
#pragma unroll
            for (int i = 0; i < STRIP; i++)
                if (i < blocks) copy_sixteen(to + 2048 * i, codes + (u64)row_of(i, 0, 0, false) * (K / 2));
            barrier_arrive_after_copies(full);
            if (is_first) {
                if (!IS_UP && taken == 0 && step == 0) wait_for_inputs();
#if E4M3_COLUMNS  // units, too, come from the kernel before this one
                int unit_bytes = step == 0 ? (tile.count + 7) / 8 * 32 : 0;
                barrier_expect(full, bytes + unit_bytes);
                if (step == 0) copy_bulk(buffers.strips[taken % 2].units, inputs.units + tile.first, unit_bytes, full);
#else
                barrier_expect(full, bytes);
#endif
                copy_bulk(buffers.tokens + turn.stage * TOKEN_BYTES, tokens, bytes, full);
            }
            __syncwarp();
        }
    }
}
