#pragma once
// Tiles of moe_wgmma in bf16: weights are widened to bf16 and multiplied from registers, by wgmma with the tokens in
// shared memory, or by mma in tiles of at most SYNC_WIDTH tokens, where that was measured to be faster.
#include "moe_ring.cuh"
#include "wgmma.cuh"
#include "widen.cuh"

struct Output {
    void *out;
    float limit;
    int num_places;
};

// Stores a block's sums: SwiGLU in the order that the next matmul reads, or rows of `out` [pairs, NUM_ROWS].
template <int N>
DEVICE void store_block(const float *sums, const Strip &strip, const Tile &tile, int block, const Output &to) {
    int thread = read_thread(), lane = thread % 32, warp = thread / 32 % 4, row = lane / 4;
    float top = wide(strip.bias[row_of(block, warp, row, false)]),
          low = wide(strip.bias[row_of(block, warp, row, true)]);
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

template <int N>
DEVICE void store_blocks(float (*sums)[N / 2], const Strip &strip, const Tile &tile, int first, const Output &to) {
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
        if (tile.strip * STRIP + first + block < ALL_BLOCKS)
            store_block<N>(sums[block], strip, tile, first + block, to);
}

// A lane's 16 codes of two rows, and their scales.
struct Codes {
    uint2 top, low;
    u8 top_scale, low_scale;
};

// Begins the products of 32 columns of a block, as a group.
template <int N>
DEVICE void multiply_wgmma(float *sums, u32 top, u32 top_scale, u32 low, u32 low_scale, u64 tokens) {
    u32 a[8];
    widen_codes(top, top_scale, a), widen_codes(low, low_scale, a + 1);
    wgmma_fence(a);
    wgmma<N>(sums, a[0], a[1], a[2], a[3], tokens);
    wgmma<N>(sums, a[4], a[5], a[6], a[7], tokens + 2);
    wgmma_commit();
}
// Multiplies 64 columns of a block, widened, by few tokens.
template <int N> DEVICE void multiply_mma(float *sums, const u32 *even, const u32 *odd, const u32 (*tokens)[8]) {
#pragma unroll
    for (int i = 0; i < 4 * (N / 8); i++) {
        const u32 *a = (i / (N / 8) < 2 ? even : odd) + i / (N / 8) % 2 * 4, *b = tokens[i % (N / 8)] + i / (N / 8) * 2;
        multiply_add(sums + i % (N / 8) * 4, a[0], a[1], a[2], a[3], b[0], b[1]);
    }
}

// Loads the B operands of mma for the 64 columns of N tokens.
template <int N> DEVICE void load_tokens(const char *tokens, int lane, u32 (*held)[8]) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        int part = i % 2 * 4 + lane / 8, row = i / 2 * 8 + lane % 8;
        load_matrices(held[i / 2] + i % 2 * 4, tokens + row * 128 + (part ^ lane % 8) * 16);
    }
}

// By a consumer warpgroup: BLOCKS blocks of a tile with up to N tokens. The codes of a block are read while the one
// before is multiplied; the products of half a block's columns are computed while the other half is widened.
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
            u32 top_scale = widen_scale(codes.top_scale), low_scale = widen_scale(codes.low_scale);
            if constexpr (N <= SYNC_WIDTH) {
                if (block == 0) load_tokens<N>(buffers.tokens + (turn.stage + ahead) * TOKEN_BYTES, lane, held);
                if (unit < LAST)
                    next = read(turn.stage + (unit + 1) / BLOCKS, (unit + 1) % BLOCKS, step + (unit + 1) / BLOCKS);
                u32 even[8], odd[8];
                widen_codes(codes.top.x, top_scale, even), widen_codes(codes.low.x, low_scale, even + 1);
                widen_codes(codes.top.y, top_scale, odd), widen_codes(codes.low.y, low_scale, odd + 1);
                multiply_mma<N>(sums[block], even, odd, held);
                if (block == BLOCKS - 1) arrive(buffers.free + turn.stage + ahead);
                continue;
            }
            u64 b = tokens + ahead * (TOKEN_BYTES / 16);
            wgmma_wait<1>();
            multiply_wgmma<N>(sums[block], codes.top.x, top_scale, codes.low.x, low_scale, b);
            if (unit < LAST)
                next = read(turn.stage + (unit + 1) / BLOCKS, (unit + 1) % BLOCKS, step + (unit + 1) / BLOCKS);
            wgmma_wait<1>();
            if (block == 0) {  // all products of the step before are complete
                if (ahead == 0) arrive(buffers.free + turn.last(), step > 0);
                else arrive(buffers.free + turn.stage + ahead - 1);
            }
            multiply_wgmma<N>(sums[block], codes.top.y, top_scale, codes.low.y, low_scale, b + 4);
        }
    }
    if constexpr (N > SYNC_WIDTH) {
        wgmma_wait<0>();
        arrive(buffers.free + turn.last());
    }
    Tile tile = buffers.tiles->find(blockIdx.x + taken * gridDim.x);  // again: no register held it
    store_blocks<N>(sums, strip, tile, first_block, to);
    arrive(buffers.strip_free + taken % 2);
}
