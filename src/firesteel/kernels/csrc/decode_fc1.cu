// The choice of experts, norm, fc1 and clamped SwiGLU for one to eight tokens.
#include "choose.cuh"
#include "multiply.cuh"
#include "normalise.cuh"

extern __shared__ __align__(128) char shared[];
constexpr int H = HIDDEN, I = INTERMEDIATE, STRIPS = 2 * I / 16;
using S = Stream<true, H, 1, NUM_WARPS, NUM_STAGES, TOKENS>;
constexpr int SCRATCH_BYTES = TOKENS * S::WARPS * 4;
static_assert(total(Ring<S>::BYTES, S::X_BYTES, SCRATCH_BYTES, sizeof(Chosen)) == SHARED_BYTES,
              "as launched");

struct Early {
    float bias[S::VALUES];
};

// Codes, scales and bias are of [EXPERTS, 2 INTERMEDIATE] rows, `inner` is [num_tokens, ACTIVE, INTERMEDIATE].
extern "C" __global__ void __launch_bounds__(S::THREADS, PROGRAMS_PER_SM)
decode_fc1(const u16 *r, const u16 *norm, const float *logits, const u8 *codes, const u8 *scales, const u16 *bias,
           u16 *inner, float eps, float limit, int num_tokens) {
    Cut cut{shared};
    Ring<S> ring(cut);
    char *x = cut.take(S::X_BYTES);
    float *scratch = (float *)cut.take(SCRATCH_BYTES);
    Chosen *chosen = (Chosen *)cut.take(sizeof(Chosen));
    ring.start();
    auto count_units = [&] {
        return (chosen->count * STRIPS - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    };
    if (threadIdx.x < S::CONSUMERS) {
        NormWeights<H, S::CONSUMERS> weights(norm);
        wait_for_inputs();
        normalise<H, S::CONSUMERS, TOKENS, S::X_STRIDE>(r, weights, eps, x, scratch, num_tokens);
        sync_some(2, S::THREADS);
        multiply_all<S>(ring, count_units(), x);
        return;
    }
    int lane = threadIdx.x % 32;
    wait_for_inputs();
    choose<false>(logits, num_tokens, chosen);
    arrive_some(2, S::THREADS);
    feed<S, Early>(
        ring, count_units(),
        [&](int unit) {
            int at = blockIdx.x + unit * gridDim.x;
            u64 row = (u64)chosen->expert[at / STRIPS] * 2 * I;
            return Rows{codes + row * S::ROW_BYTES, scales + row * S::SCALE_ROW, at % STRIPS * 16, 8};
        },
        [&](int unit, Early &e) {
            int at = blockIdx.x + unit * gridDim.x;
            const u16 *of_rows = bias + (u64)chosen->expert[at / STRIPS] * 2 * I + at % STRIPS * 16;
#pragma unroll
            for (int i = 0; i < S::VALUES; i++) e.bias[i] = wide(of_rows[(32 * i + lane) % S::COUNT / TOKENS]);
        },
        [](int unit) { return true; },
        [&](int unit, const Early &e, const float *sum) {
            int at_unit = blockIdx.x + unit * gridDim.x, place = at_unit / STRIPS;
            dawdle();
#pragma unroll
            for (int i = 0; i < S::VALUES; i++) {
                int at = 32 * i + lane, row = at_unit % STRIPS * 16 + at % S::COUNT / TOKENS, token = at % TOKENS;
                float mine = sum[i] + e.bias[i], up = __shfl_xor_sync(~0u, mine, TOKENS);  // of the next row
                int slot = chosen->slot[place][token];
                if (at >= S::COUNT || row % 2 || token >= num_tokens || slot < 0) continue;
                float gate = fminf(mine, limit);
                up = fminf(fmaxf(up, -limit), limit);
                float y = __fdividef(gate, 1 + __expf(gate * -1.702f)) * (up + 1);
                inner[((u64)token * A + slot) * I + row / 2] = narrow(y);
            }
        },
        [] { let_next_start(); });  // after the wait: fc2 reads the logits before its own
}
