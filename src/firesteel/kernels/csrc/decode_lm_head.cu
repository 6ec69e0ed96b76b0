// Norm and lm_head for one to eight tokens, and the argmax over each CTA's rows.
#include "multiply.cuh"
#include "rank.cuh"

extern __shared__ __align__(128) char shared[];
constexpr int TOKENS = MAX_TOKENS, H = HIDDEN, STRIPS = VOCABULARY / 16;
using S = Stream<IS_FP4, H, NUM_CHUNKS, NUM_WARPS, NUM_STAGES, TOKENS>;
constexpr int SCRATCH_BYTES = TOKENS * S::WARPS * 4;
static_assert(total(Ring<S>::BYTES, S::X_BYTES, SCRATCH_BYTES) == SHARED_BYTES, "as launched");

struct Prefetched {};

// `best` is [CTAs, num_tokens]; `logits` is [num_tokens, VOCABULARY].
extern "C" __global__ void
__launch_bounds__(S::THREADS, CTAS_PER_SM)
decode_lm_head(const u16 *r, const u16 *norm, const u8 *codes, const u8 *scales, float *logits, long long *best,
               float eps, int num_tokens) {
    Arena arena{shared};
    Ring<S> ring(arena);
    char *x = arena.take(S::X_BYTES);
    float *scratch = (float *)arena.take(SCRATCH_BYTES);
    launch_dependents();
    ring.start();
    Work<S> work(STRIPS);
    if (threadIdx.x < S::CONSUMERS) {
        NormWeights<H, S::CONSUMERS> weights(norm);
        wait_for_inputs();
        multiply_normed<S>(ring, work, r, weights, eps, x, scratch, num_tokens);
        return;
    }
    if (threadIdx.x / 32 < S::STORER) {
        load_all<S>(ring, work, [&](const Piece &piece) { return Rows{codes, scales, piece.strip * 16, 8}; });
        return;
    }
    int lane = threadIdx.x % 32;
    long long tops[S::VALUES];
#pragma unroll
    for (int i = 0; i < S::VALUES; i++) tops[i] = LEAST;
    wait_for_inputs();
    store_all<S, Prefetched>(
        ring, work, [](const Piece &piece, Prefetched &e) {},
        [&](const Piece &piece, const Prefetched &e, const float *sum) {
            random_delay();
#pragma unroll
            for (int i = 0; i < S::VALUES; i++) {
                int at = 32 * i + lane, row = piece.strip * 16 + at / TOKENS, token = at % TOKENS;
                if (at >= S::COUNT || token >= num_tokens) continue;
                float y = round_bf16(sum[i]);
                logits[(u64)token * VOCABULARY + row] = y;
                tops[i] = max(tops[i], rank_of(y, row));
            }
        });
    long long top = tops[0];
#pragma unroll
    for (int i = 1; i < S::VALUES; i++) top = max(top, tops[i]);  // same token, as 32 % TOKENS == 0
#pragma unroll
    for (int i = 16; i >= TOKENS; i /= 2) top = max(top, __shfl_xor_sync(~0u, top, i));
    if (lane < num_tokens) best[blockIdx.x * num_tokens + lane] = top;
}
