// Choice of experts, norm, fc1 and clamped SwiGLU for one to eight tokens.
#include "experts_up.cuh"

extern __shared__ __align__(128) char shared[];
using S = Stream<true, H, 1, NUM_WARPS, NUM_STAGES, TOKENS>;
constexpr int SCRATCH_BYTES = TOKENS * S::WARPS * 4;
static_assert(total(Ring<S>::BYTES, S::X_BYTES, SCRATCH_BYTES, sizeof(Chosen)) == SHARED_BYTES, "as launched");

extern "C" __global__ void
__launch_bounds__(S::THREADS, CTAS_PER_SM)
decode_fc1(const u16 *r, const u16 *norm, const float *logits, const u8 *codes, const u8 *scales, const u16 *bias,
           u16 *inner, float eps, float limit, int num_tokens) {
    Arena arena{shared};
    Ring<S> ring(arena);
    char *x = arena.take(S::X_BYTES);
    float *scratch = (float *)arena.take(SCRATCH_BYTES);
    Chosen *chosen = (Chosen *)arena.take(sizeof(Chosen));
    Up<S> up{chosen, codes, scales, bias, inner, limit};
    ring.start();
    if (threadIdx.x < S::CONSUMERS) {
        if constexpr (IN_TURNS) {
            Normed<S> normed(r, norm);
            wait_for_inputs();
            normed.start(eps, scratch, num_tokens);
            named_barrier_sync(2, S::THREADS);
            multiply_up_in_turns<S>(ring, Work<S>(chosen->count * up.STRIPS), chosen, normed, x, scratch);
            return;
        }
        NormWeights<H, S::CONSUMERS> weights(norm);
        wait_for_inputs();
        normalise<H, S::CONSUMERS, TOKENS, S::X_STRIDE>(r, weights, eps, x, scratch, num_tokens);
        named_barrier_sync(2, S::THREADS);
        multiply_up<S>(ring, Work<S>(chosen->count * up.STRIPS), chosen, x, scratch);
        return;
    }
    if (threadIdx.x / 32 < S::STORER) {
        wait_for_inputs();
        choose_once<S, false>(logits, num_tokens, chosen);
        named_barrier_arrive(2, S::THREADS);
        load_all<S>(ring, Work<S>(chosen->count * up.STRIPS),
                   [&](const Piece &piece) { return up.rows(piece.strip); });
        return;
    }
    wait_for_inputs();
    launch_dependents();  // not earlier: fc2 reads the logits before its own wait
    named_barrier_sync(2, S::THREADS);
    store_up<S>(ring, Work<S>(chosen->count * up.STRIPS), up);
}
