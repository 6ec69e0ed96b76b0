// fc1 and fc2 of one token in turns: an expert's rows of fc2 come after those of fc1 of the LAG experts behind it, so
// that there is work while programs wait for what others found of it.
#include "experts_down.cuh"
#include "experts_up.cuh"
#include "meet.cuh"

extern __shared__ __align__(128) char shared[];
using S = Stream<true, H, 1, NUM_WARPS, NUM_STAGES, TOKENS>;
constexpr int FETCHER = S::FINISHER + 1, THREADS = 32 * (FETCHER + 1);
constexpr int ROW_BYTES = aligned(2 * I), SCRATCH_BYTES = S::WARPS * 4, SUM_BYTES = MOST_STRIPS * S::COUNT * 4;
static_assert(TOKENS == 1 && H == I, "one token, rows of one length");
static_assert(!IS_PAIRED || A > 1, "both programs of a pair have experts for a strip that they share");
static_assert(total(Ring<S>::BYTES, S::X_BYTES, A * ROW_BYTES, SCRATCH_BYTES, SUM_BYTES, sizeof(Chosen), 2 * A * 8)
              == SHARED_BYTES, "as launched");
__device__ u64 found[A];  // programs that have all they had to do of an expert's fc1

// A program's pieces in the order of the ring.
struct Turns {
    DownWork<IS_PAIRED, true> down;
    __device__ __forceinline__ Turns() : down(Down<S>::STRIPS, A) {}
    // Of its strips of fc1, which programs take in turn, so many come before those of expert `place`.
    static __device__ __forceinline__ int before(int place) {
        int strips = place * Up<S>::STRIPS - (int)blockIdx.x;
        return strips <= 0 ? 0 : (strips + (int)gridDim.x - 1) / (int)gridDim.x;
    }
    static __device__ __forceinline__ int strip(int place, int index) {
        return blockIdx.x + (before(place) + index) * gridDim.x;
    }
    // `up` and `down` take an expert's place, the number of its first piece, and how many there are.
    template <class UpPieces, class DownPieces>
    __device__ __forceinline__ void walk(UpPieces up_pieces, DownPieces down_pieces) const {
        int number = 0;
#pragma unroll 1
        for (int turn = 0; turn < A + LAG; turn++) {
            if (int place = turn; place < A) {
                int count = before(place + 1) - before(place);
                up_pieces(place, number, count);
                number += count;
            }
            if (int place = turn - LAG; place >= 0) {
                down_pieces(place, number, down.strips(place));
                number += down.strips(place);
            }
        }
    }
};

// The multiplying warps' whole work. x, and the experts' `rows` of `inner` once they are `here`, are cut into bytes where
// they lie.
DEVICE void multiply_turns(Ring<S> &ring, const Turns &turns, const Chosen *chosen, char *x, char *rows, u64 *here) {
    int mine = threadIdx.x / 32 * S::BYTES_EACH;
    float unit = split_bytes<S>(x, x + mine);
    __syncwarp();
    auto multiply = [&](const char *bytes, float unit, int number, int count) {
        Own<S> own;
        take_bytes<S>(0, [&](int) { return bytes; }, own.b[0], own.minus[0]);
        own.unit[0] = unit;
        for (int end = number + count; number < end; number++) {
            float c[S::SETS][2];
            multiply_codes<S>(ring, number, own, c);
            leave_codes<S>(ring, number, c);
            ring.tell(ring.done, number);
        }
    };
    turns.walk([&](int, int number, int count) { multiply(x + mine, unit, number, count); },
               [&](int place, int number, int count) {
                   char *row = rows + place * ROW_BYTES;
                   barrier_wait(here + place, 0);
                   float worth = split_bytes<S>(row, row + mine) * chosen->weight[0][place];
                   __syncwarp();
                   multiply(row + mine, worth, number, count);
               });
}

// The fetcher's: an expert's row of `inner` when all programs have found their part of it, this one as it is `told`.
DEVICE void fetch_rows(const u16 *inner, char *rows, u64 *told, u64 *here) {
    constexpr int VECTORS = I / 8, OWN = (VECTORS + 31) / 32;
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int place = 0; place < A; place++) {
        barrier_wait(told + place, 0);
        meet_grid(found + place);
        const uint4 *from = (const uint4 *)(inner + place * I);
        uint4 *to = (uint4 *)(rows + place * ROW_BYTES), own[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (32 * i + lane < VECTORS) own[i] = from[32 * i + lane];
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (32 * i + lane < VECTORS) to[32 * i + lane] = own[i];
        __syncwarp();
        if (lane < ARRIVING) barrier_arrive(here + place);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS_PER_SM)
decode_experts_turns(u16 *r, const u16 *norm, const float *logits, const u8 *up_codes, const u8 *up_scales,
                     const u16 *up_bias, const u8 *down_codes, const u8 *down_scales, const u16 *down_bias, u16 *inner,
                     const u8 *ahead, long long ahead_bytes, float eps, float limit) {
    Cut cut{shared};
    Ring<S> ring(cut);
    char *x = cut.take(S::X_BYTES), *rows = cut.take(A * ROW_BYTES);
    float *scratch = (float *)cut.take(SCRATCH_BYTES), *sums = (float *)cut.take(SUM_BYTES);
    Chosen *chosen = (Chosen *)cut.take(sizeof(Chosen));
    u64 *told = (u64 *)cut.take(2 * A * 8), *here = told + A;
    let_next_start();
    if (threadIdx.x == 0)
        for (int i = 0; i < 2 * A; i++) barrier_init(told + i, ARRIVING);
    ring.start(IS_PAIRED);
    Turns turns;
    int warp = threadIdx.x / 32;
    if (warp < S::WARPS) {
        NormWeights<H, S::CONSUMERS> weights(norm);
        wait_for_inputs();
        normalise<H, S::CONSUMERS, TOKENS, S::X_STRIDE>(r, weights, eps, x, scratch, 1);
        multiply_turns(ring, turns, chosen, x, rows, here);
        return;
    }
    wait_for_inputs();
    Up<S> up{chosen, up_codes, up_scales, up_bias, inner, limit};
    Down<S> down{chosen, down_codes, down_scales, down_bias, r, 1};
    if (warp < S::FINISHER) {
        choose_once<S, false>(logits, 1, chosen);
        arrive_some(2, S::THREADS - S::CONSUMERS);
        turns.walk([&](int place, int number, int count) {
                       for (int i = 0; i < count; i++) ask_next<S>(ring, number + i, up.rows(turns.strip(place, i)));
                   },
                   [&](int place, int number, int count) {
                       for (int i = 0; i < count; i++)
                           ask_next<S>(ring, number + i, down.rows(place, turns.down.piece(place, i).strip));
                   });
        barrier_wait(here + A - 1, 0);  // what all wait for would queue behind what comes now
        fetch_ahead<S>(ahead, ahead_bytes);
        return;
    }
    if (warp == FETCHER) {
        fetch_rows(inner, rows, told, here);
        return;
    }
    sync_some(2, S::THREADS - S::CONSUMERS);
    choose<false, true>(logits, 1, chosen);
    clear_sums<S>(sums);
    turns.walk([&](int place, int number, int count) {
                   for (int i = 0; i < count; i++) finish_up<S>(ring, number + i, turns.strip(place, i), up);
                   __syncwarp();
                   if (threadIdx.x % 32 < ARRIVING) barrier_arrive(told + place);
               },
               [&](int place, int number, int count) {
                   for (int i = 0; i < count; i++)
                       finish_down<S>(ring, number + i, turns.down.piece(place, i), down, sums);
               });
}
