#pragma once
// Streams weights through a ring of stages in shared memory, 16 rows (a strip) at a time, for up to 8 tokens.
//
// One or two loader warps issue bulk copies into the ring. Consumer warps multiply: each handles the same columns of
// every row, so its part of x stays in registers. The storer warp adds up the partial sums that consumers leave in
// shared memory and writes the result. Warps synchronise through the ring's barriers only.
#include "primitives.cuh"

constexpr int FLIGHT = NUM_FLIGHT;

// Rows of K values in FP4 or BF16; a row is streamed in CHUNKS parts.
template <bool FP4_, int K_, int CHUNKS_, int WARPS_, int STAGES_, int TOKENS_>
struct Stream {
    static constexpr bool FP4 = FP4_;
    static constexpr int K = K_, CHUNKS = CHUNKS_, WARPS = WARPS_, STAGES = STAGES_, TOKENS = TOKENS_;
    static constexpr int ROW_BYTES = FP4 ? K / 2 : 2 * K;
    static constexpr int PART_BYTES = ROW_BYTES / CHUNKS;
    static constexpr int STEPS = PART_BYTES / 32;            // a step is 32 bytes of each of 16 rows
    static constexpr int OWN = (STEPS + WARPS - 1) / WARPS;  // steps per consumer warp
    static constexpr int STRIDE = padded(PART_BYTES);
    static constexpr bool WHOLE = STRIDE == ROW_BYTES;  // 16 consecutive rows are one bulk copy
    static constexpr int LOADERS = WHOLE ? 1 : 2;       // issuing a bulk copy costs a warp about 60 cycles
    static constexpr int STORER = WARPS + LOADERS;      // index of the storer, the last warp
    static constexpr int CONSUMERS = WARPS * 32, THREADS = 32 * (STORER + 1);
    static constexpr int SCALE_ROW = FP4 ? K / 32 : 0, SCALE_BYTES = 16 * SCALE_ROW;
    static constexpr int BIAS_AT = 16 * STRIDE + SCALE_BYTES, BIAS_BYTES = FP4 ? 32 : 0;
    static constexpr int STAGE_BYTES = aligned(BIAS_AT + BIAS_BYTES);
    static constexpr int X_STRIDE = padded(2 * K), X_BYTES = NUM_HELD * X_STRIDE;  // x of NUM_HELD tokens at a time
    static constexpr int SETS = (TOKENS + 3) / 4;                         // sets of 4 tokens, two MMA columns per token
    static constexpr int SPREAD = TOKENS == 1 ? 4 : TOKENS == 2 ? 2 : 1;  // scale groups side by side in one MMA
    static constexpr int BYTES_EACH = OWN * 128;  // high and low bytes of a warp's columns of one token
    static constexpr int COUNT = 16 * TOKENS, VALUES = (COUNT + 31) / 32;  // sums per strip; per lane
    static_assert(PART_BYTES % 32 == 0 && ROW_BYTES % CHUNKS == 0, "PART_BYTES is a multiple of a step");
    static_assert(!FP4 || CHUNKS == 1, "FP4 rows are streamed whole");
    static_assert(!FP4 || OWN * WARPS == STEPS, "FP4 rows divide evenly among warps");
};

// The 16 rows of a strip: 8 from `first` on and 8 from `first + apart` on (`apart` is 8 if all are consecutive). For
// consecutive FP4 rows the stage also carries their bias, if given.
struct Rows {
    const u8 *codes, *scales;
    int first, apart;
    const u16 *bias = nullptr;
};

template <class S> struct Ring {
    char *data;
    float *sums;  // [STAGES][WARPS][COUNT]
    float *half;  // [COUNT] partial sums of a strip shared by two CTAs, sent by the second to the first
    u64 *full, *done, *free, *half_full;
    static constexpr int SUM_BYTES = S::STAGES * S::WARPS * S::COUNT * 4, HALF_BYTES = S::COUNT * 4;
    static constexpr int BARRIER_BYTES = (3 * S::STAGES + 1) * 8;
    static constexpr int BYTES = total(S::STAGES * S::STAGE_BYTES, SUM_BYTES, HALF_BYTES, BARRIER_BYTES);

    __device__ __forceinline__ Ring(Arena &arena) {
        data = arena.take(S::STAGES * S::STAGE_BYTES);
        sums = (float *)arena.take(SUM_BYTES);
        half = (float *)arena.take(HALF_BYTES);
        full = (u64 *)arena.take(BARRIER_BYTES);
        done = full + S::STAGES, free = done + S::STAGES, half_full = free + S::STAGES;
    }
    __device__ __forceinline__ void start(bool is_paired = false) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < S::STAGES; i++) {
                barrier_init(full + i, S::LOADERS * ARRIVING);
                barrier_init(done + i, S::WARPS * ARRIVING), barrier_init(free + i, ARRIVING);
            }
            barrier_init(half_full, 1);
            barrier_publish();
            barrier_expect(half_full, HALF_BYTES);
        }
        __syncthreads();
        if (is_paired) cluster_arrive();
        if (is_paired && ARRIVING > 1) cluster_wait();
    }
    __device__ __forceinline__ void wait(u64 *bars, int number) {
        barrier_wait(bars + number % S::STAGES, number / S::STAGES & 1);
    }

    // Called by every loader warp. With two loaders, each issues the copies of its half of the rows.
    __device__ __forceinline__ void load(int number, const Rows &rows, int chunk) {
        int lane = threadIdx.x % 32, loader = threadIdx.x / 32 - S::WARPS;
        u64 *bar = full + number % S::STAGES;
        char *to = data + number % S::STAGES * S::STAGE_BYTES;
        bool has_bias = S::FP4 && loader == 0 && rows.bias;
        if (lane == 0)
            barrier_expect(bar, (16 * S::PART_BYTES + S::SCALE_BYTES) / S::LOADERS + (has_bias ? S::BIAS_BYTES : 0));
        else if (lane < ARRIVING) barrier_arrive(bar);
        __syncwarp();
        if constexpr (S::WHOLE) {
            const u8 *from = rows.codes + (u64)rows.first * S::ROW_BYTES;
            if (rows.apart == 8) {
                if (lane == 0) copy_bulk(to, from, 16 * S::ROW_BYTES, bar);
            } else if (lane < 2)
                copy_bulk(to + lane * 8 * S::ROW_BYTES, from + (u64)lane * rows.apart * S::ROW_BYTES, 8 * S::ROW_BYTES,
                          bar);
        } else if (lane < 8) {
            int row = rows.first + loader * rows.apart + lane;
            copy_bulk(to + (loader * 8 + lane) * S::STRIDE,
                      rows.codes + (u64)row * S::ROW_BYTES + chunk * S::PART_BYTES, S::PART_BYTES, bar);
        }
        if constexpr (S::FP4) {
            const u8 *from = rows.scales + (u64)rows.first * S::SCALE_ROW;
            char *scales = to + 16 * S::STRIDE;
            if (S::LOADERS == 1 && rows.apart == 8) {
                if (lane == 16) copy_bulk(scales, from, S::SCALE_BYTES, bar);
            } else if (S::LOADERS == 1 ? lane / 2 == 8 : lane == 16) {
                int part = S::LOADERS == 1 ? lane % 2 : loader;
                copy_bulk(scales + part * 8 * S::SCALE_ROW, from + (u64)part * rows.apart * S::SCALE_ROW,
                          8 * S::SCALE_ROW, bar);
            }
            if (has_bias && lane == 24) copy_bulk(to + S::BIAS_AT, rows.bias + rows.first, S::BIAS_BYTES, bar);
        }
    }
    // Called by the storer: the bias that was copied with a stage.
    __device__ __forceinline__ const u16 *bias(int number) {
        wait(full, number);
        return (const u16 *)(data + number % S::STAGES * S::STAGE_BYTES + S::BIAS_AT);
    }

    // Called by the storer, after `done`: adds up the consumers' partial sums in a fixed order. Value i of a lane is
    // row (32 i + lane) / TOKENS of token (32 i + lane) % TOKENS. Only the first `count` sums are valid if fewer tokens
    // than S::TOKENS were multiplied.
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
    // Called by a warp of a pair's second CTA: sends its half of a strip's sums to the first CTA.
    __device__ __forceinline__ void send(const float *sum) {
        if (ARRIVING == 1) cluster_wait();  // the first CTA has initialised its barrier
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            int at = 32 * i + threadIdx.x % 32;
            if (at < S::COUNT) store_peer(half + at, sum[i], half_full, 0);
        }
    }
    // Called by a warp of the first CTA: adds the half that the second CTA sent.
    __device__ __forceinline__ void receive(float *sum) {
        barrier_wait(half_full, 0);
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) sum[i] += half[(32 * i + threadIdx.x % 32) % S::COUNT];
    }
    // Called by a whole warp: arrives at the barrier of this stage.
    __device__ __forceinline__ void arrive(u64 *bars, int number) {
        __syncwarp();
        if (threadIdx.x % 32 < ARRIVING) barrier_arrive(bars + number % S::STAGES);
    }
    // Where this consumer warp leaves its partial sums.
    __device__ __forceinline__ float *mine(int number) {
        return sums + (number % S::STAGES * S::WARPS + threadIdx.x / 32) * S::COUNT;
    }
};

// What one stage of the ring holds: a part of a strip. After the last part of a strip (`ends`) its sums are complete,
// unless two CTAs share the strip: then the second sends its half (`sends`) and the first adds it (`receives`).
struct Piece {
    int strip, chunk;
    bool ends, sends, receives;
};

// The pieces of a CTA when strips are assigned to CTAs round-robin.
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

// Called by the loaders for one piece after another. At most FLIGHT stages are in flight: enough to keep memory busy,
// without making other kernels' reads queue for long.
template <class S> DEVICE void load_next(Ring<S> &ring, int number, const Rows &rows, int chunk = 0) {
    if (FLIGHT < S::STAGES && number >= FLIGHT) ring.wait(ring.full, number - FLIGHT);
    if (number >= S::STAGES) ring.wait(ring.free, number - S::STAGES);
    ring.load(number, rows, chunk);
}

// The loaders' main loop over the pieces of `work`; `rows(piece)` locates a piece's 16 rows.
template <class S, class Pieces, class RowsOf> DEVICE void load_all(Ring<S> &ring, const Pieces &work, RowsOf rows) {
    for (int number = 0; number < work.total; number++) {
        auto piece = work.at(number);
        load_next<S>(ring, number, rows(piece), piece.chunk);
    }
}

// The storer's main loop. `prefetch(piece, e)` reads the operands that `store(piece, e, sum)` needs beside the sums.
template <class S, class Prefetched, class Pieces, class Prefetch, class Store>
DEVICE void store_all(Ring<S> &ring, const Pieces &work, Prefetch prefetch, Store store) {
    for (int number = 0; number < work.total; number++) {
        auto piece = work.at(number);
        bool is_whole = piece.ends && !piece.sends;
        Prefetched e;
        if (is_whole) prefetch(piece, e);
        ring.wait(ring.done, number);
        float sum[S::VALUES];
        if (piece.ends) ring.add_up(number, sum);
        ring.arrive(ring.free, number);
        if (piece.ends && piece.sends) ring.send(sum);
        if (!is_whole) continue;
        if (piece.receives) ring.receive(sum);
        store(piece, e, sum);
    }
}
