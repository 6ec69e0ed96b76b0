// y = 2 x through a ring of two stages, with an optional planted fault. x and y are [gridDim.x][COUNT].
#include "instructions.cuh"

enum Fault {
    NONE,
    READS_TOO_SOON,
    REUSES_TOO_SOON,
    NEVER_ARRIVES,
    SPINS,
    WRITES_BEHIND,
    COPIES_CROOKED,
    LEAVES_COPIES,
    WAITS_FOR_NOTHING,
    READS_WHO_LEFT,
    READS_UNWRITTEN,
    COPIES_EARLY,
    READS_PAST_THE_END,
    WRITES_BEFORE_THE_BEGIN,
    WRITES_NEXT_TO_THE_END,
    COPIES_PAST_THE_END,
    READS_ANYWHERE
};
constexpr int PIECE = 32, PIECES = 16, COUNT = PIECE * PIECES, STAGES = 2;
extern __shared__ __align__(128) char shared[];

extern "C" __global__ void planted(float *y, const float *x, u64 *counter, int fault) {
    __shared__ u64 full[STAGES], free[STAGES];
    __shared__ float unwritten;
    float *ring = (float *)shared;
    int lane = threadIdx.x % 32;
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++)
            barrier_init(full + i, 1), barrier_init(free + i, fault == NEVER_ARRIVES ? 2 : 1);
    __syncthreads();
    x += blockIdx.x * COUNT, y += blockIdx.x * COUNT;
    if (fault == WRITES_BEHIND && threadIdx.x == 63) shared[SHARED_BYTES + 5] = 1;
    if (fault == SPINS && threadIdx.x == 0)
        while (read_acquire(counter) == 0) {
        }
    bool copies_early = fault == COPIES_EARLY && threadIdx.x < 32;
    if (fault != WAITS_FOR_NOTHING && !copies_early) wait_for_prior_grid();
    if (threadIdx.x < 32) {
        for (int number = 0; number < (fault == LEAVES_COPIES ? STAGES : PIECES); number++) {
            int stage = number % STAGES;
            if (copies_early && number == STAGES) wait_for_prior_grid();
            if (number >= STAGES && fault != REUSES_TOO_SOON) barrier_wait(free + stage, number / STAGES - 1 & 1);
            __syncwarp();  // otherwise a lane could miss two phases of the barrier
            if (lane == 0) {
                barrier_expect(full + stage, 4 * PIECE);
                int wrong = fault == COPIES_CROOKED ? 1 : fault == COPIES_PAST_THE_END ? PIECE / 2 : 0;
                copy_bulk(ring + stage * PIECE, x + number * PIECE + wrong, 4 * PIECE, full + stage);
            }
        }
    } else if (fault != LEAVES_COPIES) {
        for (int number = 0; number < PIECES; number++) {
            int stage = number % STAGES;
            float early = ring[stage * PIECE + lane];
            barrier_wait(full + stage, number / STAGES & 1);
            y[number * PIECE + lane] = 2 * (fault == READS_TOO_SOON ? early : ring[stage * PIECE + lane]);
            __syncwarp();
            if (lane == 0) barrier_arrive(free + stage);
        }
    }
    bool is_last = blockIdx.x == 1 && threadIdx.x == 63;
    if (fault == READS_PAST_THE_END && is_last) y[0] = x[COUNT + 2];
    if (fault == WRITES_BEFORE_THE_BEGIN && threadIdx.x == 5) y[-2] = 1;
    if (fault == WRITES_NEXT_TO_THE_END && is_last) counter[1] = 1;
    if (fault == READS_ANYWHERE && is_last) y[0] = *(const float *)0x10;
    if (fault < NONE) unwritten = 1;
    if (fault == READS_UNWRITTEN) y[0] = unwritten;
    if (fault == READS_WHO_LEFT && blockIdx.x == 1)
        for (;;) y[lane] = load_peer(ring, 0), __nanosleep(1);  // until the emulator detects it
}
