// Norm, qkv, bias, rope and KV write for one to eight tokens.
#include "multiply.cuh"

#if FP8_PAGES  // keys and values are scaled and rounded to E4M3; values that clip are counted
typedef u8 Held;
constexpr float LARGEST_E4M3 = 448.f;
#define SCALES , float times_key, float times_value, u64 *clipped
#else
typedef u16 Held;
#define SCALES
#endif

extern __shared__ __align__(128) char shared[];
constexpr int TOKENS = MAX_TOKENS, H = HIDDEN, D = HEAD_DIM;
constexpr int STRIPS = (HEADS + 2 * KV_HEADS) * D / 16, PER_HEAD = D / 16;
using S = Stream<IS_FP4, H, NUM_CHUNKS, NUM_WARPS, NUM_STAGES, TOKENS>;
constexpr int SCRATCH_BYTES = TOKENS * S::WARPS * 4;
static_assert(total(Ring<S>::BYTES, S::X_BYTES, SCRATCH_BYTES) == SHARED_BYTES, "as launched");

struct Prefetched {
    float bias[S::VALUES], cosine[S::VALUES], sine[S::VALUES];
};
// A strip is 8 rows of a head and the 8 rows that rope pairs with them, half a head further.
DEVICE int pair_of(int strip, int row) { return strip % PER_HEAD * 8 + row % 8; }

extern "C" __global__ void
__launch_bounds__(S::THREADS, CTAS_PER_SM)
decode_qkv(const u16 *r, const u16 *norm, const u16 *bias, const u8 *codes, const u8 *scales, u16 *q, Held *k_pages,
           Held *v_pages, const float *table, const long long *positions, const long long *slots, float eps,
           int num_tokens, int page_size SCALES) {
    Arena arena{shared};
    Ring<S> ring(arena);
    char *x = arena.take(S::X_BYTES);
    float *scratch = (float *)arena.take(SCRATCH_BYTES);
    ring.start();
    Work<S> work(STRIPS);
    if (threadIdx.x < S::CONSUMERS) {
        NormWeights<H, S::CONSUMERS> weights(norm);
        wait_for_inputs();
        multiply_normed<S>(ring, work, r, weights, eps, x, scratch, num_tokens);
        return;
    }
    if (threadIdx.x / 32 < S::STORER) {
        load_all<S>(ring, work, [&](const Piece &piece) {
            return Rows{codes, scales, piece.strip / PER_HEAD * D + piece.strip % PER_HEAD * 8, D / 2};
        });
        return;
    }
    int lane = threadIdx.x % 32;
    const float *turnings[S::VALUES];
    long long slot[S::VALUES];
    wait_for_inputs();
    launch_dependents();  // not earlier: attention reads results of earlier steps before its own wait
#pragma unroll
    for (int i = 0; i < S::VALUES; i++) {
        int token = min((32 * i + lane) % TOKENS, num_tokens - 1);
        turnings[i] = table + positions[token] * D, slot[i] = slots[token];
    }
    store_all<S, Prefetched>(
        ring, work,
        [&](const Piece &piece, Prefetched &e) {
            int strip = piece.strip;
#pragma unroll
            for (int i = 0; i < S::VALUES; i++) {
                int row = (32 * i + lane) % S::COUNT / TOKENS, pair = pair_of(strip, row);
                e.bias[i] = wide(bias[strip / PER_HEAD * D + pair + (row >= 8 ? D / 2 : 0)]);
                e.cosine[i] = turnings[i][pair], e.sine[i] = turnings[i][pair + D / 2];
            }
        },
        [&](const Piece &piece, const Prefetched &e, const float *sum) {
            int strip = piece.strip, head = strip / PER_HEAD;
            float value[S::VALUES];
            random_delay();
#pragma unroll
            for (int i = 0; i < S::VALUES; i++) value[i] = round_bf16(sum[i] + e.bias[i]);
#pragma unroll
            for (int i = 0; i < S::VALUES; i++) {
                // the other half of the rope pair is 8 rows away
                float other = TOKENS >= 4 ? value[i ^ (TOKENS / 4)] : __shfl_xor_sync(~0u, value[i], 8 * TOKENS);
                int at = 32 * i + lane, row = at / TOKENS, token = at % TOKENS;
                if (at >= S::COUNT || token >= num_tokens) continue;
                bool second = row >= 8;
                int d = pair_of(strip, row) + (second ? D / 2 : 0);
                float y = value[i];
                if (head < HEADS + KV_HEADS)
                    y = __fadd_rn(__fmul_rn(value[i], e.cosine[i]), __fmul_rn(second ? other : -other, e.sine[i]));
                if (head < HEADS) {
                    q[(token * HEADS + head) * D + d] = narrow(y);
                } else {
                    int kv = (head - HEADS) % KV_HEADS;
                    Held *pages = head < HEADS + KV_HEADS ? k_pages : v_pages;
                    long long place = (slot[i] / page_size * KV_HEADS + kv) * page_size + slot[i] % page_size;
#if FP8_PAGES
                    y *= head < HEADS + KV_HEADS ? times_key : times_value;
                    if (clipped && fabsf(y) > LARGEST_E4M3) atomicAdd(clipped, 1ull);
                    pages[place * D + d] = (u8)narrow_e4m3(y, 0.f);
#else
                    pages[place * D + d] = narrow(y);
#endif
                }
            }
        });
}
