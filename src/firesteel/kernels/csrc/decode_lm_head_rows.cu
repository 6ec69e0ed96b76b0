// Norm and lm_head of one token in bf16, and the argmax over each CTA's rows. A warp loads a row straight into
// registers, without a ring.
#include "normalise.cuh"
#include "rank.cuh"

constexpr int H = HIDDEN, WARPS = NUM_WARPS, THREADS = 32 * WARPS, STRIPS = VOCABULARY / 16;
constexpr int VECTORS = H / 8, OWN = (VECTORS + 31) / 32;  // 16-byte vectors per row; per lane
static_assert(WARPS % 16 == 0, "a strip of 16 rows is one row per warp");

// `best` is [CTAs]; `logits` is [VOCABULARY].
extern "C" __global__ void
__launch_bounds__(THREADS, 1)
decode_lm_head_rows(const u16 *r, const u16 *norm, const u16 *weight, float *logits, long long *best, float eps) {
    __shared__ __align__(16) char x[padded(2 * H)];
    __shared__ float scratch[WARPS];
    __shared__ long long tops[WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int strip = blockIdx.x + warp / 16 * gridDim.x, step = WARPS / 16 * gridDim.x;
    uint4 own[OWN];  // this row's vectors; each is replaced by the next row's once multiplied
    auto row_of = [&](int strip) { return strip * 16 + warp % 16; };
    auto read = [&](int strip, int i) {
        const uint4 *row = (const uint4 *)(weight + (u64)row_of(strip) * H);
        if (strip < STRIPS && 32 * i + lane < VECTORS) own[i] = row[32 * i + lane];
    };
    launch_dependents();
#pragma unroll
    for (int i = 0; i < OWN; i++) read(strip, i);
    NormWeights<H, THREADS> weights(norm);
    wait_for_inputs();
    normalise<H, THREADS, 1, padded(2 * H)>(r, weights, eps, x, scratch, 1);
    long long top = LEAST;
    for (; strip < STRIPS; strip += step) {
        float sums[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            if (32 * i + lane >= VECTORS) break;
            uint4 values = *(const uint4 *)(x + 16 * (32 * i + lane));
            const u32 *a = (const u32 *)&own[i], *b = (const u32 *)&values;
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[j] = fmaf(wide_high(a[j]), wide_high(b[j]), fmaf(wide_low(a[j]), wide_low(b[j]), sums[j]));
            read(strip + step, i);
            if (i % 4 == 3) asm volatile("" ::: "memory");  // limits how much of x is in registers at a time
        }
        float y = round_bf16(warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3])));
        random_delay();
        if (lane == 0) logits[row_of(strip)] = y;
        top = max(top, rank_of(y, row_of(strip)));
    }
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < WARPS; w++) top = max(top, tops[w]);
    best[blockIdx.x] = top;
}
