// Small kernels, one for each thing that building and launching must get right.
#include "small.cuh"

// x = FACTOR * factor * x + 1, in place: a chain of these is wrong as soon as one begins too early.
extern "C" __global__ void __launch_bounds__(256) step(float* x, float factor, int n) {
    let_next_begin();
    wait_for_previous();
    int i = thread_number();
    if (i < n) x[i] = FACTOR * factor * x[i] + 1.0f;
}

// y = x turned around, n <= 256, at the far end of the dynamic shared memory.
extern "C" __global__ void __launch_bounds__(256) turn(float* y, const float* x, int n, int shared_bytes) {
    extern __shared__ float memory[];
    __shared__ int length[32];
    float* end = memory + shared_bytes / 4 - 256;
    if (threadIdx.x < 32) length[threadIdx.x] = n;
    __syncthreads();
    if (threadIdx.x < n) end[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < n) y[threadIdx.x] = end[length[threadIdx.x % 32] - 1 - threadIdx.x];
}

struct Pair {
    int a;
    long long b;
};

extern "C" __global__ void mixed(double* y, Pair pair, double d, long long l, short s, unsigned char c, const int* p) {
    y[0] = pair.a + pair.b + d + l + s + c + (p ? *p : 0.5);
}

extern "C" __global__ void rank_in_cluster(int* y) {
    int rank = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    y[blockIdx.x] = rank;
}

extern "C" __global__ void product_f16(float* y, const unsigned* x) {
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]));
    y[threadIdx.x] = c0 + c1 + c2 + c3;
}

#if __CUDA_ARCH__ >= 1200 || !defined(__CUDA_ARCH__)
__device__ __forceinline__ float product_e4m3(const unsigned* x) {
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    unsigned short zero = 0;
    asm volatile(
        "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%12,%12}, {%11}, {%12,%12};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]), "h"(zero));
    return c0 + c1 + c2 + c3;
}

extern "C" __global__ void product_mxfp4(float* y, const unsigned* x) { y[threadIdx.x] = product_e4m3(x); }

extern "C" __global__ void product_mxfp8(float* y, const unsigned* x) { y[threadIdx.x] = product_e4m3(x); }
#endif

// More values than a thread has registers, all of which wait for the sum.
extern "C" __global__ void hungry(float* y, const float* x) {
    float values[400], sum = 0;
#pragma unroll
    for (int i = 0; i < 400; i++) sum += values[i] = x[i * 32 + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 400; i++) y[i * 32 + threadIdx.x] = values[i] * sum;
}
