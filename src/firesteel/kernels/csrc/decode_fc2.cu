// fc2, weighted sum over a token's experts and residual, for one to eight tokens.
#include "experts_down.cuh"

extern __shared__ __align__(128) char shared[];
using S = Stream<true, I, 1, NUM_WARPS, NUM_STAGES, TOKENS>;
constexpr int ROOM_BYTES = S::WARPS * HELD * S::BYTES_EACH, UNIT_BYTES = S::WARPS * HELD * 4;
constexpr int SUM_BYTES = MOST_STRIPS * S::COUNT * 4;
static_assert(total(Ring<S>::BYTES, ROOM_BYTES, UNIT_BYTES, SUM_BYTES, sizeof(Chosen)) == SHARED_BYTES, "as launched");

extern "C" __global__ void
__launch_bounds__(S::THREADS, CTAS_PER_SM)
decode_fc2(const u16 *inner, const float *logits, const u8 *codes, const u8 *scales, const u16 *bias, u16 *r,
           int num_tokens) {
    Arena arena{shared};
    Ring<S> ring(arena);
    char *room = arena.take(ROOM_BYTES);
    float *units = (float *)arena.take(UNIT_BYTES);
    float *sums = (float *)arena.take(SUM_BYTES);
    Chosen *chosen = (Chosen *)arena.take(sizeof(Chosen));
    Down<S> down{chosen, codes, scales, bias, r, num_tokens};
    launch_dependents();
    ring.start();
    if (threadIdx.x < S::CONSUMERS) {
        named_barrier_sync(2, S::THREADS);
        wait_for_inputs();
        multiply_down<S>(ring, 0, DownWork<false>(down.STRIPS, chosen->count), chosen, inner, room, units,
                         num_tokens);
        return;
    }
    if (threadIdx.x / 32 < S::STORER) {
        choose_once<S, true>(logits, num_tokens, chosen);  // final before the previous kernel started this one
        named_barrier_arrive(2, S::THREADS);
        load_all<S>(ring, DownWork<false>(down.STRIPS, chosen->count),
                   [&](const DownPiece &piece) { return down.rows(piece.place, piece.strip); });
        return;
    }
    named_barrier_sync(2, S::THREADS);
    wait_for_inputs();
    store_down<S>(ring, 0, DownWork<false>(down.STRIPS, chosen->count), down, sums);
}
