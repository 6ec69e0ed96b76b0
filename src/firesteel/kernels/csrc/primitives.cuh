#pragma once
// Conversions, reductions and shared-memory layout that the kernels share.
#include "instructions.cuh"

#ifdef DELAYS  // test build: random delays expose ordering that holds by luck only
DEVICE void random_delay() {
    u32 n = (u32)clock64() * 2654435761u ^ blockIdx.x * 40503u;
    __nanosleep(n >> 18);
}
#else
DEVICE void random_delay() {}
#endif

// Lanes per warp that arrive at an mbarrier once the whole warp is done.
#ifdef ALL_ARRIVE  // build for compute-sanitizer's racecheck: it does not model the order that __syncwarp gives, so
                   // every lane arrives itself; and under it a cluster barrier opens only if whole CTAs wait at it
constexpr int ARRIVING = 32;
#else
constexpr int ARRIVING = 1;
#endif

// With dependent launch: on return, all writes of the previous kernel are visible. Every CTA waits before it reads or
// writes anything that another kernel of the step touches, and before it ends, so that the end of a kernel implies the
// end of all kernels before it.
DEVICE void wait_for_inputs() {
    random_delay();
    wait_for_prior_grid();
}

// bf16 to float (`wide`) and back (`narrow`); a `pair` is two bf16 in one word.
DEVICE float wide_low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float wide_high(u32 pair) { return __uint_as_float(pair & 0xFFFF0000u); }
DEVICE float wide(u16 bits) { return __uint_as_float((u32)bits << 16); }
DEVICE u16 narrow(float x) { return (u16)narrow_pair(x, 0.f); }
DEVICE float round_bf16(float x) { return wide(narrow(x)); }
DEVICE void round_e4m3(float &low, float &high) { wide_e4m3(narrow_e4m3(low, high), low, high); }
// Two E4M3 codes as a pair of bf16; bf16 represents every E4M3 value exactly.
DEVICE u32 pair_e4m3(u16 codes) {
    float low, high;
    wide_e4m3(codes, low, high);
    return narrow_pair(low, high);
}

// Clamped SwiGLU, as the op moe_matmul defines it.
DEVICE float swiglu(float gate, float up, float limit) {
    gate = min_nan(gate, limit);
    up = min_nan(max_nan(up, -limit), limit);
    return __fdividef(gate, 1 + __expf(gate * -1.702f)) * (up + 1);
}

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

// Looks up four E2M1 codes as bytes of twice their value with one byte permutation, which gives 0 for codes whose sign
// bit is set. Positive and negative values are therefore looked up separately, and multiplied by x and by -x. `small`
// is 0x03020100.
DEVICE u32 twice_positive(u32 small, u32 codes) { return permute_bytes(small, 0x0C080604u, codes); }
DEVICE u32 negate_bytes(u32 x) { return ((~x & 0x7F7F7F7Fu) + 0x01010101u) ^ (~x & 0x80808080u); }

// x is quantised to integers of 14 bits, 128 high + low. High and low bytes are separate columns of the product, which
// is exact.
constexpr int HIGH = 128;
constexpr float LARGEST = 8000.f;    // below 64 * 128 - 64; 32 products of it with 12 stay below 2^22
constexpr float MAGIC = 12582912.f;  // 1.5 * 2^23: an integer below 2^22 added to it appears in its low bits
constexpr u32 MAGIC_BITS = 0x4B400000u;

// Row stride in shared memory: rows start 8 banks apart, so 4 rows of 32 bytes use every bank once.
__host__ __device__ constexpr int padded(int bytes) {
    int size = (bytes + 15) / 16 * 16;
    while (size / 4 % 32 != 8 && size / 4 % 32 != 24) size += 16;
    return size;
}

// Bump allocator over a kernel's shared memory; `total` is the space that allocations of these sizes need together.
__host__ __device__ constexpr int aligned(int bytes) { return (bytes + 127) / 128 * 128; }
template <class... Bytes> __host__ __device__ constexpr int total(Bytes... bytes) { return (aligned(bytes) + ...); }
struct Arena {
    char *next;
    __device__ __forceinline__ char *take(int bytes) {
        char *taken = next;
        next += aligned(bytes);
        return taken;
    }
};
