#pragma once
// Multiplies packed FP4 rows by bf16 tokens with integer MMA. The only error is the quantisation of x to 14 bits.
#include "ring.cuh"
#include "round_mxfp8.cuh"

#ifndef KEEPS_ALL
#define KEEPS_ALL 1
#endif

// A lane reads eight codes of a group at a time. In kernels for one or two tokens it reads sixteen (TWICE), free of
// bank conflicts: then two of four lanes hold codes of one group and two of the next, in MMA columns of their own.
template <class S> constexpr bool TWICE = S::SPREAD > 1 && MAX_TOKENS <= 2;

// A warp's MMA fragments of x: for each group of its columns, the high bytes of a token as one column, the low bytes as
// the next, and their negatives. With few tokens, SPREAD groups share an MMA side by side in the free columns, so that
// one accumulator serves them all and each lane scales its own.
template <class S> struct Fragments {
    u32 b[S::SETS][2 * S::OWN][2], minus[S::SETS][2 * S::OWN][2];
    float unit[S::SETS];  // value of one integer step of token_of(set), times 1/2 for the doubled E2M1 codes
};
// Number of groups for which the negatives of the second set of tokens stay in registers. Unless KEEPS_ALL, those of
// the other half are recomputed for every product: SM12x has no registers left for them.
template <class S> constexpr int KEPT = KEEPS_ALL ? 2 * S::OWN : S::OWN;
// Whether MAGIC is added to the sums at their end, not at their start, where it takes registers.
template <class S> constexpr bool STARTS_AT_ZERO = !KEEPS_ALL && S::SETS > 1;
template <class S> DEVICE int token_of(int set) { return 4 * set + threadIdx.x % 4 % S::TOKENS; }

// A lane's pairs of bf16 from this warp's columns of `values` [K].
template <class S> struct Pairs {
    static constexpr int COUNT = S::OWN;
    u32 of[COUNT];
    __device__ __forceinline__ void read(const char *values) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            of[i] = *(const u32 *)(values + 2 * (threadIdx.x / 32 * S::OWN * 64 + 64 * i + 2 * (threadIdx.x % 32)));
    }
};

// Quantises pairs (rounded to MXFP8 first if ROUNDS_X) to bytes [2][OWN * 64] of this warp's columns: high bytes, then
// low bytes. 128 high + low is the value in units of the returned float. Called by a whole warp; `bytes` may overlap
// the warp's own values, which take the same space.
template <class S> DEVICE float split_bytes(const Pairs<S> &values, char *bytes) {
    constexpr int COLUMNS = S::OWN * 64, PAIRS = Pairs<S>::COUNT;
    u32 pairs[PAIRS];
    int lane = threadIdx.x % 32;
    float largest = 1e-30f;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        pairs[i] = values.of[i];
#if ROUNDS_X
        pairs[i] = round_mxfp8(pairs[i]);
#endif
        largest = max_nan(largest, max_nan(fabsf(wide_low(pairs[i])), fabsf(wide_high(pairs[i]))));
    }
    largest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest)));
    float times = __fdividef(LARGEST, largest);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        int a = __float_as_int(fmaf(wide_low(pairs[i]), times, MAGIC));
        int b = __float_as_int(fmaf(wide_high(pairs[i]), times, MAGIC));
        int high_a = (a + 64) >> 7, high_b = (b + 64) >> 7;  // MAGIC's own bits contribute a multiple of 256
        *(u16 *)(bytes + 64 * i + 2 * lane) = (high_a & 255) | high_b << 8;
        *(u16 *)(bytes + COLUMNS + 64 * i + 2 * lane) = (a - (high_a << 7) & 255) | (b - (high_b << 7)) << 8;
    }
    return largest * (0.5f / LARGEST);
}

template <class S> DEVICE float split_bytes(const char *values, char *bytes) {
    Pairs<S> pairs;
    pairs.read(values);
    __syncwarp();
    return split_bytes<S>(pairs, bytes);
}

// Loads the fragments of one set of tokens. `bytes(token)` points to a token's bytes; null means zeros. Also computes
// the negatives if `minus` is given.
template <class S, class BytesOf>
DEVICE void load_bytes(int set, BytesOf bytes, u32 (*b)[2], u32 (*minus)[2] = nullptr) {
    constexpr int WIDE = S::SPREAD == 1 ? 8 : 2 * S::TOKENS;  // columns of a group
    int lane = threadIdx.x % 32, column = lane / 4, token = 4 * set + column % WIDE / 2;
    const char *mine = token < S::TOKENS ? bytes(token) : nullptr;
    if (mine) mine += column % 2 * (S::BYTES_EACH / 2) + lane % 4 * (TWICE<S> ? 16 : 8);
#pragma unroll
    for (int i = 0; i < 2 * S::OWN; i++) {
        int group = TWICE<S> ? i / 2 * 2 + lane % 4 / 2 : i;
        uint2 eight = {0, 0};
        if (mine && column / WIDE == group % S::SPREAD)
            eight = *(const uint2 *)(mine + (TWICE<S> ? i / 2 * 64 + i % 2 * 8 : i * 32));
        b[i][0] = eight.x, b[i][1] = eight.y;
        if (!minus) continue;
        minus[i][0] = negate_bytes(eight.x), minus[i][1] = negate_bytes(eight.y);
        asm volatile("" : "+r"(minus[i][0]), "+r"(minus[i][1]));  // keep in registers, do not recompute
    }
}

// Looks up eight codes of each of two rows as bytes in MMA order, positive and negative codes separately.
DEVICE void look_up(u32 small, u32 top, u32 low, u32 *positive, u32 *negative) {
    positive[0] = twice_positive(small, top), positive[1] = twice_positive(small, low);
    positive[2] = twice_positive(small, top >> 16), positive[3] = twice_positive(small, low >> 16);
    top ^= 0x88888888u, low ^= 0x88888888u;
    negative[0] = twice_positive(small, top), negative[1] = twice_positive(small, low);
    negative[2] = twice_positive(small, top >> 16), negative[3] = twice_positive(small, low >> 16);
}

// Computes the negatives of all fragments. Those of a part of the tokens would take registers while others are loaded.
template <class S> DEVICE void negate(Fragments<S> &own) {
#pragma unroll
    for (int set = 0; set < S::SETS; set++)
#pragma unroll
        for (int i = 0; i < 4 * S::OWN; i++) {
            u32 &minus = own.minus[set][i / 2][i % 2];
            minus = negate_bytes(own.b[set][i / 2][i % 2]);
            asm volatile("" : "+r"(minus));  // keep in registers, do not recompute
        }
}
// Loads this warp's fragments of tokens FIRST to END from x [END - FIRST][X_STRIDE] in shared memory. Overwrites x.
// Unless these are all tokens, `negate` has to follow.
template <class S, int FIRST = 0, int END = S::TOKENS> DEVICE void load_x(char *x, Fragments<S> &own) {
    char *mine = x + threadIdx.x / 32 * S::BYTES_EACH;
#pragma unroll
    for (int token = FIRST; token < END; token++) {
        int at = (token - FIRST) * S::X_STRIDE;
        float unit = split_bytes<S>(x + at, mine + at);
        own.unit[token / 4] = token % 4 == 0 || token_of<S>(token / 4) == token ? unit : own.unit[token / 4];
    }
    __syncwarp();
#pragma unroll
    for (int set = FIRST / 4; set < (END + 3) / 4; set++)
        load_bytes<S>(
            set, [&](int token) { return mine + (token - FIRST) * S::X_STRIDE; }, own.b[set],
            END - FIRST == S::TOKENS ? own.minus[set] : nullptr);
}

// Loads this warp's fragments from `values` [num_tokens][K] in global memory, one token after another through `x`
// [X_STRIDE] in shared memory.
template <class S> DEVICE void load_one_by_one(const u16 *values, int num_tokens, char *x, Fragments<S> &own) {
    char *mine = x + threadIdx.x / 32 * S::BYTES_EACH;
#pragma unroll
    for (int set = 0; set < S::SETS; set++) {
        constexpr int EACH = S::TOKENS < 4 ? S::TOKENS : 4;
        Pairs<S> rows[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)  // past the last token it is repeated, and the product is not stored
            rows[i].read((const char *)(values + min(4 * set + i, num_tokens - 1) * S::K));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int current = 4 * set + i;
            __syncwarp();  // all lanes have loaded the previous token
            float unit = split_bytes<S>(rows[i], mine);
            own.unit[set] = i == 0 || token_of<S>(set) == current ? unit : own.unit[set];
            __syncwarp();
            u32 b[2 * S::OWN][2];
            load_bytes<S>(set, [&](int token) { return token == current ? mine : nullptr; }, b);
#pragma unroll
            for (int j = 0; j < 4 * S::OWN; j++) {
                u32 &held = own.b[set][j / 2][j % 2];
                held = i == 0 ? b[j / 2][j % 2] : held | b[j / 2][j % 2];  // zeros in the lanes of other tokens
            }
        }
    }
    negate<S>(own);
}

// Multiplies this warp's columns of 16 FP4 rows by x: c[set][0] is row lane / 4 of token_of(set), c[set][1] is 8 rows
// further. Lanes of other groups of the same token hold other partial sums of it. The ring may be built for more tokens
// than S.
template <class S, class R> DEVICE void multiply_fp4(R &ring, int number, const Fragments<S> &own, float (*c)[2]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stage = number % S::STAGES;
    const char *data = ring.data + stage * S::STAGE_BYTES;
    const u8 *scales = (const u8 *)data + 16 * S::STRIDE + lane / 4 * S::SCALE_ROW + warp * 2 * S::OWN;
    const char *codes = data + lane / 4 * S::STRIDE + lane % 4 * (TWICE<S> ? 8 : 4) + warp * S::OWN * 32;
    int ahead = S::SPREAD == 1 ? 0 : lane % 4 / S::TOKENS;
    u32 small = 0x03020100u + (blockDim.x >> 20), magic = MAGIC_BITS + (blockDim.x >> 20);  // opaque: kept in registers
    barrier_wait(ring.full + stage, number / S::STAGES & 1);
    float sum[S::SETS][2] = {};
#pragma unroll
    for (int begin = 0; begin < 2 * S::OWN; begin += S::SPREAD) {
        int d[S::SETS][4];
#pragma unroll
        for (int set = 0; set < S::SETS; set++)  // so that 128 high + low has the bits of MAGIC + sum
            d[set][0] = d[set][2] = 0, d[set][1] = d[set][3] = STARTS_AT_ZERO<S> ? 0 : (int)magic;
#pragma unroll
        for (int i = begin; i < begin + S::SPREAD && i < 2 * S::OWN; i++) {
            int at = TWICE<S> ? i / 2 * 32 + i % 2 * 4 : i * 16;
            u32 top = *(const u32 *)(codes + at), low = *(const u32 *)(codes + 8 * S::STRIDE + at);
            u32 a[4], n[4];
            look_up(small, top, low, a, n);
#pragma unroll
            for (int set = 0; set < S::SETS; set++) {
                multiply_add_bytes(d[set], a, own.b[set][i]);
                if (set == 0 || i < KEPT<S>) multiply_add_bytes(d[set], n, own.minus[set][i]);
                else {
                    u32 minus[2] = {own.b[set][i][0], own.b[set][i][1]};
                    asm volatile("" : "+r"(minus[0]), "+r"(minus[1]));
                    minus[0] = negate_bytes(minus[0]), minus[1] = negate_bytes(minus[1]);
                    multiply_add_bytes(d[set], n, minus);
                }
            }
        }
        int group = min(begin + ahead, 2 * S::OWN - 1);  // past the end the sum is 0: any scale will do
        float scale[2] = {__uint_as_float((u32)scales[group] << 23),
                          __uint_as_float((u32)scales[8 * S::SCALE_ROW + group] << 23)};
#pragma unroll
        for (int set = 0; set < S::SETS; set++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int bits = d[set][2 * j] * HIGH + d[set][2 * j + 1] + (STARTS_AT_ZERO<S> ? (int)magic : 0);
                float product = __int_as_float(bits) - MAGIC;
                sum[set][j] = fmaf(product, scale[j], sum[set][j]);
            }
    }
#pragma unroll
    for (int set = 0; set < S::SETS; set++)
#pragma unroll
        for (int j = 0; j < 2; j++) c[set][j] = sum[set][j] * own.unit[set];
}
// Leaves this warp's partial sums for the storer.
template <class S, class R> DEVICE void write_sums_fp4(R &ring, int number, const float (*c)[2]) {
    int lane = threadIdx.x % 32;
    float *mine = ring.mine(number);
#pragma unroll
    for (int set = 0; set < S::SETS; set++) {
        float top = c[set][0], low = c[set][1];
        if constexpr (MAX_TOKENS == 1) {  // two of four lanes end with the upper row, two with the lower
            bool is_low = lane % 2;
            float sum = (is_low ? low : top) + __shfl_xor_sync(~0u, is_low ? top : low, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (lane % 4 < 2) mine[lane / 4 + 8 * (lane % 4)] = sum;
        } else {
#pragma unroll
            for (int apart = S::TOKENS; apart < 4 && S::SPREAD > 1; apart *= 2) {
                top += __shfl_xor_sync(~0u, top, apart);
                low += __shfl_xor_sync(~0u, low, apart);
            }
            int token = 4 * set + lane % 4;
            if (token < S::TOKENS)
                mine[lane / 4 * S::TOKENS + token] = top, mine[(lane / 4 + 8) * S::TOKENS + token] = low;
        }
    }
}
