// Output projection o of attention, bias and residual, for one to eight tokens.
#include "multiply.cuh"

extern __shared__ __align__(128) char shared[];
constexpr int TOKENS = MAX_TOKENS, H = HIDDEN, STRIPS = H / 16;
using S = Stream<IS_FP4, WIDTH, NUM_CHUNKS, NUM_WARPS, NUM_STAGES, TOKENS>;
static_assert(total(Ring<S>::BYTES, S::X_BYTES) == SHARED_BYTES, "as launched");

struct Prefetched {
    float bias[S::VALUES], old[S::VALUES];
};

extern "C" __global__ void
__launch_bounds__(S::THREADS, CTAS_PER_SM)
decode_o(const u16 *mixed, const u16 *bias, const u8 *codes, const u8 *scales, u16 *r, int num_tokens) {
    Arena arena{shared};
    Ring<S> ring(arena);
    char *x = arena.take(S::X_BYTES);
    launch_dependents();
    ring.start();
    Work<S> work(STRIPS);
    if (threadIdx.x < S::CONSUMERS) {
        wait_for_inputs();
        if constexpr (NUM_HELD < TOKENS) {
            Fragments<S> own;
            load_one_by_one<S>(mixed, num_tokens, x, own);
            multiply_loaded<S>(ring, work, own);
            return;
        }
        for (int i = threadIdx.x; i < TOKENS * (S::K / 8); i += S::CONSUMERS) {
            int token = i / (S::K / 8), at = i % (S::K / 8);
            uint4 v = {0, 0, 0, 0};
            if (token < num_tokens) v = ((const uint4 *)mixed)[i];
            *(uint4 *)(x + token * S::X_STRIDE + at * 16) = v;
        }
        named_barrier_sync(1, S::CONSUMERS);
        multiply_all<S>(ring, work, x);
        return;
    }
    if (threadIdx.x / 32 < S::STORER) {
        load_all<S>(ring, work, [&](const Piece &piece) { return Rows{codes, scales, piece.strip * 16, 8}; });
        return;
    }
    int lane = threadIdx.x % 32;
    wait_for_inputs();
    store_all<S, Prefetched>(
        ring, work,
        [&](const Piece &piece, Prefetched &e) {
#pragma unroll
            for (int i = 0; i < S::VALUES; i++) {
                int at = (32 * i + lane) % S::COUNT, token = min(at % TOKENS, num_tokens - 1);
                int row = piece.strip * 16 + at / TOKENS;
                e.bias[i] = wide(bias[row]), e.old[i] = wide(r[token * H + row]);
            }
        },
        [&](const Piece &piece, const Prefetched &e, const float *sum) {
            random_delay();
#pragma unroll
            for (int i = 0; i < S::VALUES; i++) {
                int at = 32 * i + lane, row = piece.strip * 16 + at / TOKENS, token = at % TOKENS;
                if (at < S::COUNT && token < num_tokens)
                    r[token * H + row] = narrow(e.old[i] + round_bf16(sum[i] + e.bias[i]));
            }
        });
}
