#pragma once
// Tiles of moe_wgmma in E4M3: weights are widened to E4M3, with a power of two per row, and multiplied from registers
// by wgmma. A token is one column of the product, or two, high and low, whose sums are added. The hardware keeps about
// 14 bits of such sums; so they are added to sums in fp32 after each loop over STEPS_TOGETHER steps, 192 columns.
#include "moe_low_part.cuh"
#include "moe_ring.cuh"
#include "wgmma.cuh"
#include "widen_e4m3.cuh"

static_assert(SYNC_WIDTH == 0, "on Hopper only wgmma multiplies E4M3");

struct Output {
    void *out;
    float limit;
    int num_places;
};

// The sums of eight tokens in two MMA rows are four registers of a lane: two tokens in the first row, and in the
// second.
DEVICE int first_token(int lane) { return PER_TOKEN == 1 ? lane % 4 * 2 : lane % 4; }
constexpr int TO_SECOND = PER_TOKEN == 1 ? 1 : 4;  // to the second of these tokens
// The token that a lane holds after a transposition.
DEVICE int stored_token(int lane) {
    int row = lane / 4;
    return PER_TOKEN == 1 ? row : row % 2 * TO_SECOND + row / 2;
}

// Stores a block's sums: SwiGLU in bf16 [num_places, NUM_ROWS / 2], or rows of `out` [pairs, NUM_ROWS].
template <int TOKENS>
DEVICE void store_block(const float *sums, const Strip &strip, const Tile &tile, int block, const Output &to) {
    int thread = read_thread(), lane = thread % 32, warp = thread / 32 % 4;
    int top_row = row_of(block, warp, lane / 4, false), low_row = row_of(block, warp, lane / 4, true);
    float top = wide(strip.bias[top_row]), low = wide(strip.bias[low_row]);
    float top_unit = row_unit(strip.bases[top_row]), low_unit = row_unit(strip.bases[low_row]);
    block += tile.strip * STRIP;
#pragma unroll
    for (int i = 0; i < TOKENS / 8; i++) {
        int token = 8 * i + stored_token(lane), held = 8 * i + first_token(lane);
        float units[2] = {strip.units[held], strip.units[held + TO_SECOND]}, y[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            y[j] = fmaf(sums[4 * i + j] * (j < 2 ? top_unit : low_unit), units[j % 2], j < 2 ? top : low);
        if (IS_UP) {
            u32 pair = transpose(narrow_pair(swiglu(y[0], y[2], to.limit), swiglu(y[1], y[3], to.limit)));
            u64 at = (u64)(tile.first + token) * (NUM_ROWS / 2) + block * 32 + warp * 8 + lane % 4 * 2;
            if (token < tile.count) *(u32 *)((u16 *)to.out + at) = pair;
        } else {
            float weights[2] = {strip.weights[held], strip.weights[held + TO_SECOND]};
            u32 first = transpose(narrow_pair(y[0] * weights[0], y[1] * weights[1]));
            u32 second = transpose(narrow_pair(y[2] * weights[0], y[3] * weights[1]));
            if (token < tile.count) {
                u64 at = (u64)strip.order[token] * NUM_ROWS + block * 64 + warp * 16 + lane % 4 * 4;
                *(uint2 *)((u16 *)to.out + at) = uint2{first, second};
            }
        }
    }
}

// Adds the sums that the hardware made of N columns to those of tokens.
template <int N> DEVICE void promote(float *sums, const float (&parts)[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        if (PER_TOKEN == 1) sums[i] += parts[i];
        else if (i % 2 == 0) sums[i / 8 * 4 + i % 4 + i / 4 % 2] += fmaf(parts[i + 1], LOW_UNIT, parts[i]);
    }
}

// A lane's 16 codes of two rows of a step, which are of one group, and the magnitudes that this group's codes stand
// for.
struct Weights {
    uint2 top, low, top_table, low_table;
};

DEVICE void widen(const Weights &weights, u32 *a) {
    widen_to_e4m3(weights.top.x, weights.top_table, a[0], a[2]);
    widen_to_e4m3(weights.low.x, weights.low_table, a[1], a[3]);
    widen_to_e4m3(weights.top.y, weights.top_table, a[4], a[6]);
    widen_to_e4m3(weights.low.y, weights.low_table, a[5], a[7]);
}

// Begins the products of 64 columns of a block, as a group.
template <int N, bool ADDS> DEVICE void multiply_step(float *parts, u32 (&a)[8], u64 tokens) {
    wgmma_fence(a);
    wgmma_e4m3<N, ADDS>(parts, a[0], a[1], a[2], a[3], tokens);
    wgmma_e4m3<N, true>(parts, a[4], a[5], a[6], a[7], tokens + 2);
    wgmma_commit();
}

// By a consumer warpgroup: BLOCKS blocks of a tile with up to N columns. Weights are widened while those of the step
// before are multiplied; between blocks other warpgroups keep the tensor cores busy.
template <int N> DEVICE void multiply_tile(Buffers &buffers, Turn &turn, int taken, const Output &to) {
    constexpr int TOKENS = N / PER_TOKEN;
    int thread = read_thread(), lane = thread % 32, warp = thread / 32 % 4, first_block = thread / 128 * BLOCKS;
    const char *own_codes = buffers.codes + (first_block * 4 + warp) * 512 + lane * 8;
    const Strip &strip = buffers.strips[taken % 2];
    const u8 *own_scales = strip.scales + lane % 4 / 2;
    barrier_wait(buffers.strip_full + taken % 2, taken / 2 & 1);
    u32 places[BLOCKS][2];
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            places[block][i] = table_place(strip.bases[row_of(first_block + block, warp, lane / 4, i)]);
    auto read = [&](int stage, int block, int step) {
        const char *codes = own_codes + stage * CODE_BYTES + block * 2048;
        u32 top = own_scales[row_of(first_block + block, warp, lane / 4, false) * GROUPS + 2 * step];
        u32 low = own_scales[row_of(first_block + block, warp, lane / 4, true) * GROUPS + 2 * step];
        return Weights{*(const uint2 *)codes, *(const uint2 *)(codes + 256),
                       find_table(buffers.tables, places[block][0], top),
                       find_table(buffers.tables, places[block][1], low)};
    };
    float sums[BLOCKS][TOKENS / 2];
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++) sums[block][i] = 0;
    for (int step = 0; step < STEPS; step += TOGETHER, turn.advance()) {
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) barrier_wait(buffers.full + turn.stage + i, turn.parity);
        u64 tokens = describe_swizzled_bytes(buffers.tokens + turn.stage * TOKEN_BYTES);
        float parts[N / 2];
        u32 a[2][8];
        widen(read(turn.stage, 0, step), a[0]);
#pragma unroll
        for (int unit = 0; unit < TOGETHER * BLOCKS; unit++) {
            constexpr int LAST = TOGETHER * BLOCKS - 1;
            int block = unit / TOGETHER, ahead = unit % TOGETHER, next = unit + 1;
            u64 b = tokens + ahead * (TOKEN_BYTES / 16);
            Weights weights;
            if (unit < LAST) weights = read(turn.stage + next % TOGETHER, next / TOGETHER, step + next % TOGETHER);
            if (ahead == 0) multiply_step<N, false>(parts, a[unit % 2], b);
            else multiply_step<N, true>(parts, a[unit % 2], b);
            wgmma_wait<1>();
            if (unit < LAST) widen(weights, a[next % 2]);
            if (ahead < TOGETHER - 1) continue;
            wgmma_wait<0>();
            wgmma_hold(parts);
            promote<N>(sums[block], parts);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) arrive(buffers.free + turn.stage + i);
    }
    Tile tile = buffers.tiles->find(blockIdx.x + taken * gridDim.x);  // again: no register held it
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
        if (tile.strip * STRIP + first_block + block < ALL_BLOCKS)
            store_block<TOKENS>(sums[block], strip, tile, first_block + block, to);
    arrive(buffers.strip_free + taken % 2);
}
