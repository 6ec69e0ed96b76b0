#pragma once
// Weights streamed through shared memory, 16 rows at a time, to be multiplied by up to 8 tokens; knows no product.
//
// One or two warps ask for rows by bulk copies into a ring; others each multiply the same columns of all rows, so that
// what they need of x stays with them. What they found meets in shared memory, where one more warp adds it up and
// finishes it. No warp ever waits for another but through the ring.
#include "primitives.cuh"

constexpr int FLIGHT = NUM_FLIGHT;

// N rows of K values, CHUNKS parts of a row after another; FP4 or BF16.
template <bool FP4_, int K_, int CHUNKS_, int WARPS_, int STAGES_, int TOKENS_>
struct Stream {
    static constexpr bool FP4 = FP4_;
    static constexpr int K = K_, CHUNKS = CHUNKS_, WARPS = WARPS_, STAGES = STAGES_, TOKENS = TOKENS_;
    static constexpr int ROW_BYTES = FP4 ? K / 2 : 2 * K;
    static constexpr int PART_BYTES = ROW_BYTES / CHUNKS;
    static constexpr int STEPS = PART_BYTES / 32;  // 32 bytes of 16 rows
    static constexpr int OWN = (STEPS + WARPS - 1) / WARPS;
    static constexpr int STRIDE = padded(PART_BYTES);
    static constexpr bool WHOLE = STRIDE == ROW_BYTES;  // consecutive rows are one copy
    static constexpr int ASKERS = WHOLE ? 1 : 2;        // a copy takes a warp some 60 cycles to ask for
    static constexpr int FINISHER = WARPS + ASKERS;     // the last warp
    static constexpr int CONSUMERS = WARPS * 32, THREADS = 32 * (FINISHER + 1);
    static constexpr int SCALE_ROW = FP4 ? K / 32 : 0, SCALE_BYTES = 16 * SCALE_ROW;
    static constexpr int BIAS_AT = 16 * STRIDE + SCALE_BYTES, BIAS_BYTES = FP4 ? 32 : 0;
    static constexpr int STAGE_BYTES = aligned(BIAS_AT + BIAS_BYTES);
    static constexpr int X_STRIDE = padded(2 * K), X_BYTES = TOKENS * X_STRIDE;
    static constexpr int SETS = (TOKENS + 3) / 4;  // of 4 tokens, two columns each
    static constexpr int SPREAD = TOKENS == 1 ? 4 : TOKENS == 2 ? 2 : 1;  // groups whose columns are side by side
    static constexpr int BYTES_EACH = OWN * 128;   // of a warp's columns of a token, high and low bytes
    static constexpr int COUNT = 16 * TOKENS, VALUES = (COUNT + 31) / 32;  // sums of a strip; of a lane
    static_assert(PART_BYTES % 32 == 0 && ROW_BYTES % CHUNKS == 0, "parts are whole steps");
    static_assert(!FP4 || CHUNKS == 1, "packed rows are not cut");
    static_assert(!FP4 || OWN * WARPS == STEPS, "packed rows are shared out evenly");
};

// Rows `first`.. and, `apart` rows on, 8 more: 16 rows, `apart` 8 where they follow each other. Their bias, where it is
// given, comes with packed rows that follow each other.
struct Rows {
    const u8 *codes, *scales;
    int first, apart;
    const u16 *bias = nullptr;
};

template <class S> struct Ring {
    char *data;
    float *sums;  // [STAGES][WARPS][COUNT]
    float *half;  // [COUNT] of a strip that two programs share, from the second to the first
    u64 *full, *done, *free, *met;
    static constexpr int SUM_BYTES = S::STAGES * S::WARPS * S::COUNT * 4, HALF_BYTES = S::COUNT * 4;
    static constexpr int BARRIER_BYTES = (3 * S::STAGES + 1) * 8;
    static constexpr int BYTES = total(S::STAGES * S::STAGE_BYTES, SUM_BYTES, HALF_BYTES, BARRIER_BYTES);

    __device__ __forceinline__ Ring(Cut &cut) {
        data = cut.take(S::STAGES * S::STAGE_BYTES);
        sums = (float *)cut.take(SUM_BYTES);
        half = (float *)cut.take(HALF_BYTES);
        full = (u64 *)cut.take(BARRIER_BYTES);
        done = full + S::STAGES, free = done + S::STAGES, met = free + S::STAGES;
    }
    __device__ __forceinline__ void start(bool is_paired = false) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < S::STAGES; i++) {
                barrier_init(full + i, S::ASKERS * ARRIVING);
                barrier_init(done + i, S::WARPS * ARRIVING), barrier_init(free + i, ARRIVING);
            }
            barrier_init(met, 1);
            barrier_publish();
            barrier_expect(met, HALF_BYTES);
        }
        __syncthreads();
        if (is_paired) cluster_arrive();
        if (is_paired && ARRIVING > 1) cluster_wait();
    }
    __device__ __forceinline__ void wait(u64 *bars, int number) {
        barrier_wait(bars + number % S::STAGES, number / S::STAGES & 1);
    }

    // By each asker, its own half of the rows where there are two.
    __device__ __forceinline__ void ask(int number, const Rows &rows, int chunk) {
        int lane = threadIdx.x % 32, asker = threadIdx.x / 32 - S::WARPS;
        u64 *bar = full + number % S::STAGES;
        char *to = data + number % S::STAGES * S::STAGE_BYTES;
        bool has_bias = S::FP4 && asker == 0 && rows.bias;
        if (lane == 0)
            barrier_expect(bar, (16 * S::PART_BYTES + S::SCALE_BYTES) / S::ASKERS + (has_bias ? S::BIAS_BYTES : 0));
        else if (lane < ARRIVING)
            barrier_arrive(bar);
        __syncwarp();
        if constexpr (S::WHOLE) {
            const u8 *from = rows.codes + (u64)rows.first * S::ROW_BYTES;
            if (rows.apart == 8) {
                if (lane == 0) copy_bulk(to, from, 16 * S::ROW_BYTES, bar);
            } else if (lane < 2)
                copy_bulk(to + lane * 8 * S::ROW_BYTES, from + (u64)lane * rows.apart * S::ROW_BYTES,
                          8 * S::ROW_BYTES, bar);
        } else if (lane < 8) {
            int row = rows.first + asker * rows.apart + lane;
            copy_bulk(to + (asker * 8 + lane) * S::STRIDE,
                      rows.codes + (u64)row * S::ROW_BYTES + chunk * S::PART_BYTES, S::PART_BYTES, bar);
        }
        if constexpr (S::FP4) {
            const u8 *from = rows.scales + (u64)rows.first * S::SCALE_ROW;
            char *scales = to + 16 * S::STRIDE;
            if (S::ASKERS == 1 && rows.apart == 8) {
                if (lane == 16) copy_bulk(scales, from, S::SCALE_BYTES, bar);
            } else if (S::ASKERS == 1 ? lane / 2 == 8 : lane == 16) {
                int part = S::ASKERS == 1 ? lane % 2 : asker;
                copy_bulk(scales + part * 8 * S::SCALE_ROW, from + (u64)part * rows.apart * S::SCALE_ROW,
                          8 * S::SCALE_ROW, bar);
            }
            if (has_bias && lane == 24) copy_bulk(to + S::BIAS_AT, rows.bias + rows.first, S::BIAS_BYTES, bar);
        }
    }
    // By the finisher: what came with a stage.
    __device__ __forceinline__ const u16 *bias(int number) {
        wait(full, number);
        return (const u16 *)(data + number % S::STAGES * S::STAGE_BYTES + S::BIAS_AT);
    }

    // By the finisher, after `done`. Value i of a lane is row (32 i + lane) / TOKENS of token (32 i + lane) % TOKENS.
    // Of the first `count` sums, where fewer tokens than S has were multiplied.
    __device__ __forceinline__ void add_up(int number, float *sum, int count = S::COUNT) {
        const float *all = sums + number % S::STAGES * S::WARPS * S::COUNT;
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            if (32 * i >= count) break;
            int at = (32 * i + threadIdx.x % 32) % S::COUNT;
            float parts[4] = {0, 0, 0, 0};
#pragma unroll
            for (int w = 0; w < S::WARPS; w++) parts[w % 4] += all[w * S::COUNT + at];
            sum[i] = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        }
    }
    // By a warp of a pair's second program: its half of a strip's sums.
    __device__ __forceinline__ void send(const float *sum) {
        if (ARRIVING == 1) cluster_wait();  // the first one's barrier is there
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            int at = 32 * i + threadIdx.x % 32;
            if (at < S::COUNT) store_there(half + at, sum[i], met, 0);
        }
    }
    // By a warp of the first program.
    __device__ __forceinline__ void add_half(float *sum) {
        barrier_wait(met, 0);
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) sum[i] += half[(32 * i + threadIdx.x % 32) % S::COUNT];
    }
    // By a warp, to those that wait for these barriers.
    __device__ __forceinline__ void tell(u64 *bars, int number) {
        __syncwarp();
        if (threadIdx.x % 32 < ARRIVING) barrier_arrive(bars + number % S::STAGES);
    }
    __device__ __forceinline__ float *mine(int number) {
        return sums + (number % S::STAGES * S::WARPS + threadIdx.x / 32) * S::COUNT;
    }
};

// One stage of the ring: a part of a strip. With the last part of its strip the sums are whole (`ends`), or half of
// them (`sends`: the other program of the pair gets them; `meets`: it sent its half).
struct Piece {
    int strip, chunk;
    bool ends, sends, meets;
};

// The pieces of a program, of strips that programs take in turn.
template <class S> struct Work {
    int total;
    __device__ __forceinline__ Work(int strips) {
        total = (strips - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * S::CHUNKS;
    }
    __device__ __forceinline__ Piece at(int number) const {
        int chunk = number % S::CHUNKS;
        return {(int)(blockIdx.x + number / S::CHUNKS * gridDim.x), chunk, chunk == S::CHUNKS - 1, false, false};
    }
};

// By the asking warps, of one piece after another. No more than FLIGHT stages are on their way at a time: memory is kept
// busy, and what others read need not queue for long.
template <class S> DEVICE void ask_next(Ring<S> &ring, int number, const Rows &rows, int chunk = 0) {
    if (FLIGHT < S::STAGES && number >= FLIGHT) ring.wait(ring.full, number - FLIGHT);
    if (number >= S::STAGES) ring.wait(ring.free, number - S::STAGES);
    ring.ask(number, rows, chunk);
}

// The asking warps' whole work: the pieces that `work` lists, in order; `rows(piece)` says where 16 rows lie.
template <class S, class Pieces, class RowsOf> DEVICE void ask_all(Ring<S> &ring, const Pieces &work, RowsOf rows) {
    for (int number = 0; number < work.total; number++) {
        auto piece = work.at(number);
        ask_next<S>(ring, number, rows(piece), piece.chunk);
    }
}

// The finisher's whole work. `early(piece, e)` reads what `finish(piece, e, sum)` will need beside the sums.
template <class S, class Early, class Pieces, class ReadEarly, class Finish>
DEVICE void finish_all(Ring<S> &ring, const Pieces &work, ReadEarly early, Finish finish) {
    for (int number = 0; number < work.total; number++) {
        auto piece = work.at(number);
        bool is_whole = piece.ends && !piece.sends;
        Early e;
        if (is_whole) early(piece, e);
        ring.wait(ring.done, number);
        float sum[S::VALUES];
        if (piece.ends) ring.add_up(number, sum);
        ring.tell(ring.free, number);
        if (piece.ends && piece.sends) ring.send(sum);
        if (!is_whole) continue;
        if (piece.meets) ring.add_half(sum);
        finish(piece, e, sum);
    }
}
