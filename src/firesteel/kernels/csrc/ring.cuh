#pragma once
// Weights streamed through shared memory, 16 rows at a time, to be multiplied by up to 8 tokens; knows no product.
//
// One or two warps ask for rows by bulk copies into a ring; the others each multiply the same columns of all rows,
// so that what they need of x stays with them. What they found meets in shared memory, where the asking warp adds
// it up before it lets the ring's place be filled again: no warp ever waits for another but through the ring.
#include "primitives.cuh"

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
    static constexpr int CONSUMERS = WARPS * 32, THREADS = CONSUMERS + ASKERS * 32;
    static constexpr int SCALE_ROW = FP4 ? K / 32 : 0, SCALE_BYTES = 16 * SCALE_ROW;
    static constexpr int STAGE_BYTES = aligned(16 * STRIDE + SCALE_BYTES);
    static constexpr int X_STRIDE = padded(2 * K), X_BYTES = TOKENS * X_STRIDE;
    static constexpr int SETS = (TOKENS + 3) / 4;  // of 4 tokens, two columns each
    static constexpr int SPREAD = TOKENS == 1 ? 4 : TOKENS == 2 ? 2 : 1;  // groups whose columns are side by side
    static constexpr int BYTES_EACH = OWN * 128;   // of a warp's columns of a token, high and low bytes
    static constexpr int COUNT = 16 * TOKENS, VALUES = (COUNT + 31) / 32;  // sums of a strip; of a lane
    static_assert(PART_BYTES % 32 == 0 && ROW_BYTES % CHUNKS == 0, "parts are whole steps");
    static_assert(!FP4 || CHUNKS == 1, "packed rows are not cut");
    static_assert(!FP4 || OWN * WARPS == STEPS, "packed rows are shared out evenly");
};

// Rows `first`.. and, `apart` rows on, 8 more: 16 rows, `apart` 8 where they follow each other.
struct Rows {
    const u8 *codes, *scales;
    int first, apart;
};

template <class S> struct Ring {
    char *data;
    float *sums;  // [STAGES][WARPS][COUNT]
    u64 *full, *empty;
    static constexpr int SUM_BYTES = S::STAGES * S::WARPS * S::COUNT * 4;
    static constexpr int BYTES = total(S::STAGES * S::STAGE_BYTES, SUM_BYTES, S::STAGES * 8, S::STAGES * 8);

    __device__ __forceinline__ Ring(Cut &cut) {
        data = cut.take(S::STAGES * S::STAGE_BYTES);
        sums = (float *)cut.take(SUM_BYTES);
        full = (u64 *)cut.take(S::STAGES * 8);
        empty = (u64 *)cut.take(S::STAGES * 8);
    }
    __device__ __forceinline__ void start() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < S::STAGES; i++) barrier_init(full + i, 1), barrier_init(empty + i, S::WARPS);
            barrier_publish();
        }
        __syncthreads();
    }

    // By the askers.
    __device__ __forceinline__ void ask(int number, const Rows &rows, int chunk) {
        int lane = threadIdx.x % 32, asker = threadIdx.x / 32 - S::WARPS, stage = number % S::STAGES;
        char *to = data + stage * S::STAGE_BYTES;
        if (asker == 0 && lane == 0) barrier_expect(full + stage, 16 * S::PART_BYTES + S::SCALE_BYTES);
        if (S::ASKERS > 1) sync_some(3, S::ASKERS * 32);
        else __syncwarp();
        if constexpr (S::WHOLE) {
            if (rows.apart == 8) {
                if (lane == 0)
                    copy_bulk(to, rows.codes + (u64)rows.first * S::ROW_BYTES, 16 * S::ROW_BYTES, full + stage);
            } else if (lane < 2)
                copy_bulk(to + lane * 8 * S::ROW_BYTES,
                          rows.codes + (u64)(rows.first + lane * rows.apart) * S::ROW_BYTES, 8 * S::ROW_BYTES,
                          full + stage);
        } else if (lane < 8) {
            int row = rows.first + asker * rows.apart + lane;
            copy_bulk(to + (asker * 8 + lane) * S::STRIDE,
                      rows.codes + (u64)row * S::ROW_BYTES + chunk * S::PART_BYTES, S::PART_BYTES, full + stage);
        }
        if constexpr (S::FP4) {
            int half = S::ASKERS > 1 ? asker : lane - 16;
            if (S::ASKERS > 1 ? lane == 16 : lane == 16 || lane == 17)
                copy_bulk(to + 16 * S::STRIDE + half * 8 * S::SCALE_ROW,
                          rows.scales + (u64)(rows.first + half * rows.apart) * S::SCALE_ROW, 8 * S::SCALE_ROW,
                          full + stage);
        }
    }
    __device__ __forceinline__ void wait_done(int number) {
        barrier_wait(empty + number % S::STAGES, number / S::STAGES & 1);
    }

    // After wait_done. Value i of a lane is row (32 i + lane) / TOKENS of token (32 i + lane) % TOKENS.
    __device__ __forceinline__ void add_up(int number, float *sum) {
        const float *all = sums + number % S::STAGES * S::WARPS * S::COUNT;
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            int at = (32 * i + threadIdx.x % 32) % S::COUNT;
            float parts[4] = {0, 0, 0, 0};
#pragma unroll
            for (int w = 0; w < S::WARPS; w++) parts[w % 4] += all[w * S::COUNT + at];
            sum[i] = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        }
    }
    __device__ __forceinline__ void done(int number) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + number % S::STAGES);
    }
    __device__ __forceinline__ float *mine(int number) {
        return sums + (number % S::STAGES * S::WARPS + threadIdx.x / 32) * S::COUNT;
    }
};

// The asking warps' whole work. `rows(unit)` says where 16 rows lie, `early(unit, e)` reads what
// `finish(unit, e, sum)` will need beside the sums; units are this program's, in order. `last(unit)`: whether its
// sums are to be finished. `asked()` comes once the ring is asked for: the next kernel may start, and asks for its own
// weights on every SM that this one leaves.
template <class S, class Early, class RowsOf, class ReadEarly, class IsLast, class Finish, class Asked>
DEVICE void feed(Ring<S> &ring, int count, RowsOf rows, ReadEarly early, IsLast last, Finish finish, Asked asked) {
    int total = count * S::CHUNKS;
    auto ask = [&](int number) { ring.ask(number, rows(number / S::CHUNKS), number % S::CHUNKS); };
    for (int number = 0; number < min(total, S::STAGES); number++) ask(number);
    asked();
    bool is_first = threadIdx.x / 32 == S::WARPS;
    Early e;
    for (int number = 0; number < total; number++) {
        int unit = number / S::CHUNKS;
        bool ends = number % S::CHUNKS == S::CHUNKS - 1 && last(unit);
        if (ends && is_first) early(unit, e);
        ring.wait_done(number);
        float sum[S::VALUES];
        if (ends && is_first) ring.add_up(number, sum);
        if (S::ASKERS == 1) __syncwarp();
        if (number + S::STAGES < total) ask(number + S::STAGES);
        if (ends && is_first) finish(unit, e, sum);
    }
}
