#pragma once
// Small steps that kernels are made of; knows no kernel.
#include "instructions.cuh"

#ifdef DELAYS  // tests: programs dawdle where an order that is only likely would show
DEVICE void dawdle() {
    u32 n = (u32)clock64() * 2654435761u ^ blockIdx.x * 40503u;
    __nanosleep(n >> 18);
}
#else
DEVICE void dawdle() {}
#endif

// Lanes of a warp that arrive at a barrier when the whole warp is done.
#ifdef ALL_ARRIVE  // tests: each orders its own accesses, for a tool that does not see what __syncwarp adds, and in
                   // which a cluster's barrier that a part of a program waits at never opens
constexpr int ARRIVING = 32;
#else
constexpr int ARRIVING = 1;
#endif

// With dependent launch: when this returns, all that the kernel ahead of this one wrote is there. Every program
// waits before it reads or writes what others do and before it ends, so that the end of a kernel means the end of
// all before it.
DEVICE void wait_for_inputs() {
    dawdle();
    wait_for_ahead();
}

DEVICE float wide_low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float wide_high(u32 pair) { return __uint_as_float(pair & 0xFFFF0000u); }
DEVICE float wide(u16 one) { return __uint_as_float((u32)one << 16); }
DEVICE u16 narrow(float one) { return (u16)narrow_pair(one, 0.f); }
DEVICE float round_bf16(float one) { return wide(narrow(one)); }
DEVICE void round_e4m3(float &low, float &high) { wide_e4m3(narrow_e4m3(low, high), low, high); }
// As bf16, which has them all.
DEVICE u32 pair_e4m3(u16 codes) {
    float low, high;
    wide_e4m3(codes, low, high);
    return narrow_pair(low, high);
}

// Clamped, as moe_matmul has it.
DEVICE float swiglu(float gate, float up, float limit) {
    gate = smaller(gate, limit);
    up = smaller(larger(up, -limit), limit);
    return __fdividef(gate, 1 + __expf(gate * -1.702f)) * (up + 1);
}

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

// E2M1 codes as bytes of twice their size: a byte permutation looks four of them up, and gives 0 for those with the
// sign set. So positive and negative values come out apart, to be multiplied by x and by -x. `small` is 0x03020100.
DEVICE u32 twice_positive(u32 small, u32 codes) { return permute_bytes(small, 0x0C080604u, codes); }
DEVICE u32 negate_bytes(u32 x) { return ((~x & 0x7F7F7F7Fu) + 0x01010101u) ^ (~x & 0x80808080u); }

// x as whole numbers of 14 bits, 128 high + low: both are columns of the product, which is exact.
constexpr int HIGH = 128;
constexpr float LARGEST = 8000.f;    // below 64 * 128 - 64; 32 products of it with 12 stay below 2^22
constexpr float MAGIC = 12582912.f;  // 1.5 2^23: whole numbers below 2^22 added to it are its last bits
constexpr u32 MAGIC_BITS = 0x4B400000u;

// Rows 8 banks apart: 4 rows of 32 bytes meet every bank once.
__host__ __device__ constexpr int padded(int bytes) {
    int size = (bytes + 15) / 16 * 16;
    while (size / 4 % 32 != 8 && size / 4 % 32 != 24) size += 16;
    return size;
}

// The shared memory of a kernel, cut in order; `total` is what all cuts of these sizes take.
__host__ __device__ constexpr int aligned(int bytes) { return (bytes + 127) / 128 * 128; }
template <class... Bytes> __host__ __device__ constexpr int total(Bytes... bytes) { return (aligned(bytes) + ...); }
struct Cut {
    char *at;
    __device__ __forceinline__ char *take(int bytes) {
        char *mine = at;
        at += aligned(bytes);
        return mine;
    }
};
