// fc1 and fc2 in one kernel, for rows of the same length: fc2's weights follow fc1's through the same ring and have
// arrived when all CTAs have passed the grid barrier between the two.
#include "experts_down.cuh"
#include "experts_up.cuh"
#include "grid_barrier.cuh"
#include "prefetch.cuh"

extern __shared__ __align__(128) char shared[];
using S = Stream<true, H, 1, NUM_WARPS, NUM_STAGES, TOKENS>;
constexpr int HELD_BYTES = S::WARPS * HELD * S::BYTES_EACH, UNIT_BYTES = S::WARPS * HELD * 4;
constexpr int ROOM_BYTES = HELD_BYTES > S::X_BYTES ? HELD_BYTES : S::X_BYTES;
static_assert(H == I, "fc1 and fc2 have rows of the same length");
static_assert(!IS_PAIRED || A > 1, "both CTAs of a pair need experts for a strip that they share");
constexpr int SUM_BYTES = MOST_STRIPS * S::COUNT * 4;
static_assert(total(Ring<S>::BYTES, ROOM_BYTES, UNIT_BYTES, SUM_BYTES, sizeof(Chosen)) == SHARED_BYTES, "as launched");

// fc1's pieces, then fc2's.
struct BothWork {
    Work<S> up;
    DownWork<IS_PAIRED> down;
    int total;
    __device__ __forceinline__ BothWork(int count) : up(count * Up<S>::STRIPS), down(Down<S>::STRIPS, count) {
        total = up.total + down.total;
    }
    __device__ __forceinline__ DownPiece at(int number) const {
        if (number < up.total) return {up.at(number), -1, 0};
        return down.at(number - up.total);
    }
};

extern "C" __global__ void
__launch_bounds__(S::THREADS, CTAS_PER_SM)
decode_experts(u16 *r, const u16 *norm, const float *logits, const u8 *up_codes, const u8 *up_scales,
               const u16 *up_bias, const u8 *down_codes, const u8 *down_scales, const u16 *down_bias, u16 *inner,
               const u8 *ahead, long long ahead_bytes, float eps, float limit, int num_tokens) {
    Arena arena{shared};
    Ring<S> ring(arena);
    char *room = arena.take(ROOM_BYTES);  // x, then rows of `inner`
    float *units = (float *)arena.take(UNIT_BYTES);
    float *sums = (float *)arena.take(SUM_BYTES);
    Chosen *chosen = (Chosen *)arena.take(sizeof(Chosen));
    Up<S> up{chosen, up_codes, up_scales, up_bias, inner, limit};
    Down<S> down{chosen, down_codes, down_scales, down_bias, r, num_tokens};
    launch_dependents();
    ring.start(IS_PAIRED);
    if (threadIdx.x < S::CONSUMERS) {
        NormWeights<H, S::CONSUMERS> weights(norm);
        wait_for_inputs();
        normalise<H, S::CONSUMERS, TOKENS, S::X_STRIDE>(r, weights, eps, room, units, num_tokens);
        named_barrier_sync(2, S::THREADS);
        BothWork work(chosen->count);
        multiply_up<S>(ring, work.up, chosen, room, units);
        named_barrier_sync(4, S::CONSUMERS + 32);
        multiply_down<S>(ring, work.up.total, work.down, chosen, inner, room, units, num_tokens);
        return;
    }
    if (threadIdx.x / 32 < S::STORER) {
        wait_for_inputs();
        choose_once<S, false>(logits, num_tokens, chosen);
        named_barrier_arrive(2, S::THREADS);
        BothWork work(chosen->count);
        load_all<S>(ring, work, [&](const DownPiece &piece) {
            return piece.place < 0 ? up.rows(piece.strip) : down.rows(piece.place, piece.strip);
        });
        // only after the grid barrier: reads of `inner` would queue behind the prefetch
        if (work.down.total <= S::STAGES) ring.wait(ring.done, work.up.total);
        prefetch_next_weights<S>(ahead, ahead_bytes);
        return;
    }
    wait_for_inputs();
    named_barrier_sync(2, S::THREADS);
    choose<false, true>(logits, num_tokens, chosen);
    BothWork work(chosen->count);
    store_up<S>(ring, work.up, up);
    grid_barrier();
    named_barrier_arrive(4, S::CONSUMERS + 32);
    store_down<S>(ring, work.up.total, work.down, down, sums);
}
