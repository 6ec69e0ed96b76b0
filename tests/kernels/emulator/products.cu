// D [64, 16] = A [64, 64] B [64, 16] by one warpgroup, with an optional planted fault. `a` is [4][128][4]: each
// thread's words of four wgmmas; `b` is swizzled, [16][64]; `d` is [128][8].
#include "wgmma.cuh"

enum Fault { NONE, READS_TOO_SOON, REUSES_TOO_SOON, NEVER_WAITS };
extern __shared__ __align__(1024) char shared[];

extern "C" __global__ void products(const u32 *a, const u16 *b, float *d, int fault) {
    u16 *tokens = (u16 *)shared;
    for (int i = threadIdx.x; i < 16 * 64; i += 128) tokens[i] = b[i];
    __syncthreads();
    float sums[8] = {};
    for (int step = 0; step < 4; step++) {
        u32 words[4];
        for (int i = 0; i < 4; i++) words[i] = a[(step * 128 + threadIdx.x) * 4 + i];
        wgmma_fence(words);
        wgmma<16>(sums, words[0], words[1], words[2], words[3], describe_swizzled(tokens) + 2 * step);
        wgmma_commit();
        wgmma_wait<1>();
    }
    if (fault == REUSES_TOO_SOON) {
        __syncthreads();
        for (int i = threadIdx.x; i < 16 * 64; i += 128) tokens[i] = 0x7FFF;
        __syncthreads();
    }
    if (fault != READS_TOO_SOON && fault != NEVER_WAITS) wgmma_wait<0>();
    for (int i = 0; i < 8; i++) d[threadIdx.x * 8 + i] = sums[i];
    if (fault == READS_TOO_SOON) wgmma_wait<0>();
}

// The same in E4M3, D [64, 16] = A [64, 64] B [64, 16]. `a` is [2][128][4], `b` [16][64] bytes; with `adds` D holds 1s
// before.
extern "C" __global__ void products_e4m3(const u32 *a, const u8 *b, float *d, int fault, int adds) {
    u8 *tokens = (u8 *)shared;
    for (int i = threadIdx.x; i < 16 * 64; i += 128) tokens[i] = b[i];
    __syncthreads();
    float sums[8];
    for (int i = 0; i < 8; i++) sums[i] = 1;
    for (int step = 0; step < 2; step++) {
        u32 words[4];
        for (int i = 0; i < 4; i++) words[i] = a[(step * 128 + threadIdx.x) * 4 + i];
        u64 operand = describe_swizzled_bytes(tokens) + 2 * step;
        wgmma_fence(words);
        if (step == 0 && !adds) wgmma_e4m3<16, false>(sums, words[0], words[1], words[2], words[3], operand);
        else wgmma_e4m3<16, true>(sums, words[0], words[1], words[2], words[3], operand);
        wgmma_commit();
        wgmma_wait<1>();
    }
    if (fault != READS_TOO_SOON) wgmma_wait<0>();
    wgmma_hold(sums);
    for (int i = 0; i < 8; i++) d[threadIdx.x * 8 + i] = sums[i];
    if (fault == READS_TOO_SOON) wgmma_wait<0>();
}
