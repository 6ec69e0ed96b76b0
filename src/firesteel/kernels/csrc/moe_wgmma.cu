// One matmul of the experts for many tokens. IS_UP: gate and up, SwiGLU; else down, weighted.
//
// A tile is a strip of an expert's rows and up to WIDEST of its tokens; CTAs take tiles in turn. A producer warpgroup
// copies weights and tokens to a ring of stages, 64 columns each. Consumer warpgroups widen the weights to bf16, BLOCKS times 64
// rows each, and multiply them from registers by the tokens in shared memory.
#include "moe_tiles.cuh"
#include "swizzle.cuh"
#include "wgmma.cuh"
#include "widen.cuh"

extern __shared__ __align__(1024) char shared[];
constexpr int K = NUM_COLUMNS, STEPS = K / 64, GROUPS = K / 32, ALL_BLOCKS = NUM_ROWS / 64;
constexpr int BLOCKS = NUM_BLOCKS, WARPGROUPS = NUM_WARPGROUPS, CONSUMERS = 4 * WARPGROUPS;
constexpr int PRODUCERS = 4, THREADS = 32 * (CONSUMERS + PRODUCERS), STAGES = NUM_STAGES;
// Registers per thread: an SM has 512 for one thread of each warpgroup. Producers leave theirs to the consumers.
constexpr int LAUNCHED_REGISTERS = 512 / (WARPGROUPS + 1) / 8 * 8, FEW_REGISTERS = 32;
constexpr int MANY_REGISTERS = (LAUNCHED_REGISTERS * (WARPGROUPS + 1) - FEW_REGISTERS) / WARPGROUPS / 8 * 8;
constexpr int TOKEN_BYTES = WIDEST * 128, CODE_BYTES = STRIP * 64 * 32;
constexpr int BARRIER_BYTES = (2 * STAGES + 4) * 8;
static_assert(K % 64 == 0 && NUM_ROWS % 64 == 0 && STRIP == WARPGROUPS * BLOCKS, "whole blocks and steps");
static_assert(!IS_UP || STRIP % 2 == 0 && NUM_ROWS % 128 == 0, "two blocks make 64 columns of the next matmul");

// What consumers need of a tile beside the stages. Aligned, so that bulk copies can fill it.
struct Strip {
    u8 scales[STRIP * 64 * GROUPS];
    u16 bias[STRIP * 64];
    float weights[IS_UP ? 4 : WIDEST];
    int order[IS_UP ? 4 : WIDEST];
};
static_assert(total(STAGES * TOKEN_BYTES, STAGES * CODE_BYTES, 2 * sizeof(Strip), BARRIER_BYTES, sizeof(Tiles)) ==
                  SHARED_BYTES,
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
    __device__ __forceinline__ Buffers() {
        Arena arena{shared};
        tokens = arena.take(STAGES * TOKEN_BYTES);
        codes = arena.take(STAGES * CODE_BYTES);
        strips = (Strip *)arena.take(2 * sizeof(Strip));
        full = (u64 *)arena.take(BARRIER_BYTES);
        free = full + STAGES, strip_full = free + STAGES, strip_free = strip_full + 2;
        tiles = (Tiles *)arena.take(sizeof(Tiles));
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

// Row of its strip that is MMA row `lane / 4` (`is_low`: 8 further) of warp `warp` in block `block`. The two MMA rows of
// a lane are gate and up of one column, or two neighbouring pairs of rows; after a transposition a lane holds what is
// stored side by side.
DEVICE int row_of(int block, int warp, int row, bool is_low) {
    if (IS_UP) return 128 * (block / 2) + 2 * (8 * (block % 2) + warp + column_at(0, row)) + is_low;
    return 64 * block + 16 * warp + 4 * (row / 2) + row % 2 + 2 * is_low;
}

struct Inputs {
    const u16 *x;
    const float *weights;  // by place
    const int *order;
    const u8 *codes, *scales;
    const u16 *bias;
    int num_places;
};

// By one thread.
DEVICE void load_strip(const Inputs &from, const Tile &tile, u64 row, int blocks, Strip *to, u64 *full) {
    int tokens = (tile.count + 7) / 8 * 8;
    barrier_expect(full, blocks * 64 * (GROUPS + 2) + (IS_UP ? 0 : 8 * tokens));
    copy_bulk(to->scales, from.scales + row * GROUPS, blocks * 64 * GROUPS, full);
    copy_bulk(to->bias, from.bias + row, blocks * 64 * 2, full);
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
        int blocks = min(STRIP, ALL_BLOCKS - tile.strip * STRIP), bytes = (tile.count + 7) / 8 * 1024;
        if (taken >= 2) barrier_wait(buffers.strip_free + taken % 2, taken / 2 - 1 & 1);
        __syncwarp();
        if (is_first)
            load_strip(inputs, tile, row, blocks, buffers.strips + taken % 2, buffers.strip_full + taken % 2);
        const u8 *codes = inputs.codes + row * (K / 2) + own;
        const u16 *tokens = inputs.x + (u64)tile.first * 64;
        for (int step = 0; step < STEPS; step++, codes += 32, tokens += (u64)inputs.num_places * 64, turn.advance(1)) {
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
                barrier_expect(full, bytes);
                copy_bulk(buffers.tokens + turn.stage * TOKEN_BYTES, tokens, bytes, full);
            }
            __syncwarp();
        }
    }
}

struct Output {
    void *out;
    float limit;
    int num_places;
};

// Stores a block's sums: SwiGLU in the order that the next matmul reads, or rows of `out` [pairs, NUM_ROWS].
template <int N>
DEVICE void store_block(const float *sums, const Strip &strip, const Tile &tile, int block, const Output &to) {
    int thread = read_thread(), lane = thread % 32, warp = thread / 32 % 4, row = lane / 4;
    float top = wide(strip.bias[row_of(block, warp, row, false)]), low = wide(strip.bias[row_of(block, warp, row, true)]);
    block += tile.strip * STRIP;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] = fmaf(sums[4 * i + j], WIDENED_UNIT, j < 2 ? top : low);
        int token = 8 * i + row, place = tile.first + token;
        if (IS_UP) {
            u32 pair = transpose(narrow_pair(swiglu(y[0], y[2], to.limit), swiglu(y[1], y[3], to.limit)));
            u64 at = part_at(block / 2, place, block % 2 * 4 + warp, to.num_places) + lane % 4 * 2;
            if (token < tile.count) *(u32 *)((u16 *)to.out + at) = pair;
        } else {
            float2 weight = *(const float2 *)(strip.weights + 8 * i + lane % 4 * 2);
            u32 first = transpose(narrow_pair(y[0] * weight.x, y[1] * weight.y));
            u32 second = transpose(narrow_pair(y[2] * weight.x, y[3] * weight.y));
            if (token < tile.count) {
                u64 at = (u64)strip.order[token] * NUM_ROWS + block * 64 + warp * 16 + lane % 4 * 4;
                *(uint2 *)((u16 *)to.out + at) = uint2{first, second};
            }
        }
    }
}

// A lane's 16 codes of two rows, and their scales.
struct Codes {
    uint2 top, low;
    u8 top_scale, low_scale;
};

// Loads the B operands of mma for the 64 columns of N tokens.
template <int N> DEVICE void load_tokens(const char *tokens, int lane, u32 (*held)[8]) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        int part = i % 2 * 4 + lane / 8, row = i / 2 * 8 + lane % 8;
        load_matrices(held[i / 2] + i % 2 * 4, tokens + row * 128 + (part ^ lane % 8) * 16);
    }
}

// By a consumer warpgroup: BLOCKS blocks of a tile with up to N tokens. The codes of a block are read while the one before
// is multiplied; the products of half a block's columns are computed while the other half is widened.
template <int N> DEVICE void multiply_tile(Buffers &buffers, Turn &turn, int taken, const Output &to) {
    int thread = read_thread(), lane = thread % 32, warp = thread / 32 % 4, first_block = thread / 128 * BLOCKS;
    const char *own_codes = buffers.codes + (first_block * 4 + warp) * 512 + lane * 8;
    const Strip &strip = buffers.strips[taken % 2];
    const u8 *own_scales = strip.scales + lane % 4 / 2;
    auto read = [&](int stage, int block, int step) {
        const char *codes = own_codes + stage * CODE_BYTES + block * 2048;
        const u8 *top = own_scales + row_of(first_block + block, warp, lane / 4, false) * GROUPS + 2 * step;
        const u8 *low = own_scales + row_of(first_block + block, warp, lane / 4, true) * GROUPS + 2 * step;
        return Codes{*(const uint2 *)codes, *(const uint2 *)(codes + 256), *top, *low};
    };
    float sums[BLOCKS][N / 2];
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int i = 0; i < N / 2; i++) sums[block][i] = 0;
    barrier_wait(buffers.strip_full + taken % 2, taken / 2 & 1);
    for (int step = 0; step < STEPS; step += TOGETHER, turn.advance()) {
        // here, not between the products below: across a loop the compiler lets no wgmma run but at the head of another
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) barrier_wait(buffers.full + turn.stage + i, turn.parity);
        Codes next = read(turn.stage, 0, step);
        u64 tokens = describe_swizzled(buffers.tokens + turn.stage * TOKEN_BYTES);
        u32 held[N <= SYNC_WIDTH ? N / 8 : 1][8];  // of a step: the lane's pairs of each 8 tokens
#pragma unroll
        for (int unit = 0; unit < TOGETHER * BLOCKS; unit++) {
            constexpr int LAST = TOGETHER * BLOCKS - 1;
            int block = unit % BLOCKS, ahead = unit / BLOCKS;
            Codes codes = next;
            u32 top_scale = widen_scale(codes.top_scale), low_scale = widen_scale(codes.low_scale), even[8], odd[8];
            if constexpr (N <= SYNC_WIDTH) {
                if (block == 0) load_tokens<N>(buffers.tokens + (turn.stage + ahead) * TOKEN_BYTES, lane, held);
                if (unit < LAST)
                    next = read(turn.stage + (unit + 1) / BLOCKS, (unit + 1) % BLOCKS, step + (unit + 1) / BLOCKS);
                widen_codes(codes.top.x, top_scale, even), widen_codes(codes.low.x, low_scale, even + 1);
                widen_codes(codes.top.y, top_scale, odd), widen_codes(codes.low.y, low_scale, odd + 1);
#pragma unroll
                for (int i = 0; i < 4 * (N / 8); i++) {
                    const u32 *a = (i / (N / 8) < 2 ? even : odd) + i / (N / 8) % 2 * 4, *b = held[i % (N / 8)] + i / (N / 8) * 2;
                    multiply_add(sums[block] + i % (N / 8) * 4, a[0], a[1], a[2], a[3], b[0], b[1]);
                }
                if (block == BLOCKS - 1) arrive(buffers.free + turn.stage + ahead);
                continue;
            }
            u64 b = tokens + ahead * (TOKEN_BYTES / 16);
            wgmma_wait<1>();
            widen_codes(codes.top.x, top_scale, even), widen_codes(codes.low.x, low_scale, even + 1);
            wgmma_fence(even);
            wgmma<N>(sums[block], even[0], even[1], even[2], even[3], b);
            wgmma<N>(sums[block], even[4], even[5], even[6], even[7], b + 2);
            wgmma_commit();
            if (unit < LAST)
                next = read(turn.stage + (unit + 1) / BLOCKS, (unit + 1) % BLOCKS, step + (unit + 1) / BLOCKS);
            wgmma_wait<1>();
            if (block == 0) {  // all products of the step before are complete
                if (ahead == 0) arrive(buffers.free + turn.last(), step > 0);
                else arrive(buffers.free + turn.stage + ahead - 1);
            }
            widen_codes(codes.top.y, top_scale, odd), widen_codes(codes.low.y, low_scale, odd + 1);
            wgmma_fence(odd);
            wgmma<N>(sums[block], odd[0], odd[1], odd[2], odd[3], b + 4);
            wgmma<N>(sums[block], odd[4], odd[5], odd[6], odd[7], b + 6);
            wgmma_commit();
        }
    }
    if constexpr (N > SYNC_WIDTH) {
        wgmma_wait<0>();
        arrive(buffers.free + turn.last());
    }
    Tile tile = buffers.tiles->find(blockIdx.x + taken * gridDim.x);  // again: no register held it
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
        if (tile.strip * STRIP + first_block + block < ALL_BLOCKS)
            store_block<N>(sums[block], strip, tile, first_block + block, to);
    arrive(buffers.strip_free + taken % 2);
}

__device__ constexpr int index_of(int width) {
    int index = 0;
    while (ALL_WIDTHS[index] != width) index++;
    return index;
}
// By a consumer warpgroup: this CTA's tiles of a width. Each width has its own loop: in a common one, the sums of all
// widths would compete for registers.
template <int N> DEVICE void multiply_width(Buffers &buffers, Turn &turn, int &taken, const Output &to) {
    constexpr int WIDTH = index_of(N);
    for (; (int)(blockIdx.x + taken * gridDim.x) < buffers.tiles->ends[WIDTH]; taken++)
        multiply_tile<N>(buffers, turn, taken, to);
}
template <int... N> struct Widths {
    __device__ __forceinline__ static void multiply(Buffers &buffers, Turn &turn, const Output &to) {
        int taken = 0;
        (multiply_width<N>(buffers, turn, taken, to), ...);
    }
};

// x is [K / 64, num_places, 64], `starts`, `counts`, `order` and `weights` as moe_place writes them. `out` is x of the
// next matmul, or [pairs, NUM_ROWS] bf16.
extern "C" __global__ void
__launch_bounds__(THREADS, 1)
moe_wgmma(const u16 *x, const int *starts, const int *counts, const int *order, const float *weights, const u8 *codes,
          const u8 *scales, const u16 *bias, void *out, float limit, int num_places) {
    Buffers buffers;
    buffers.start();
    // down's list of tiles, and what it reads beside tokens, were final when up began
    if (IS_UP) wait_for_inputs();
    launch_dependents();
    if (threadIdx.x / 32 == 0) buffers.tiles->list(starts, counts);
    __syncthreads();
    if (threadIdx.x / 32 >= CONSUMERS) {
        lower_registers<FEW_REGISTERS>();
        load_all(buffers, Inputs{x, weights, order, codes, scales, bias, num_places});
        wait_for_inputs();
        return;
    }
    raise_registers<MANY_REGISTERS>();
    Turn turn;
    Widths<WIDTHS>::multiply(buffers, turn, Output{out, limit, num_places});
    wait_for_inputs();
}
