#pragma once
// Wrappers of wgmma, Hopper's asynchronous matrix instruction: D [64, N] += A [64, 16] B [16, N] in bf16, or 32 instead
// of 16 in E4M3, with sums in fp32. Of sums of E4M3 products the hardware keeps about 14 bits. Four warps multiply
// together: warp w has rows 16 w to 16 w + 15, and its lane l has rows l / 4 and l / 4 + 8. A comes from registers, B
// from shared memory. Tests replace this file (tests/kernels/emulator/wgmma.cuh).
#include "instructions.cuh"

// Registers per thread that this warpgroup has from now on, out of those that the CTA was launched with.
template <int COUNT> DEVICE void raise_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void lower_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Begins wgmmas that read A from the registers `a`: what was written to registers before is seen by them.
template <int COUNT> DEVICE void wgmma_fence(u32 (&a)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(a[i])::"memory");  // computed before, not after
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Makes a group of the wgmmas since the last call.
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING of the latest groups are incomplete. Registers and shared memory that an incomplete group
// reads must not change.
template <int PENDING> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Descriptor of B [N, 64] at a multiple of 1024 bytes. A row is one token's 64 values of K, 128 bytes; its 16-byte
// parts are at position part ^ row % 8. The next 16 values of K have a descriptor that is larger by 2.
DEVICE u64 describe_swizzled(const void *b) {
    return (u64)(shared_address(b) >> 4 & 0x3FFF) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Descriptor of B [N, 64] in E4M3 at a multiple of 512 bytes. A row is one column's 64 values of K, 64 bytes; its
// 16-byte parts are at position part ^ row / 2 % 4. The next 32 values of K have a descriptor that is larger by 2.
DEVICE u64 describe_swizzled_bytes(const void *b) {
    return (u64)(shared_address(b) >> 4 & 0x3FFF) | 1ull << 16 | 32ull << 32 | 2ull << 62;
}
// Called after a wait: sums are not read before.
template <int COUNT> DEVICE void wgmma_hold(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// a0 and a1 hold columns 2 (l % 4) and the next of lane l's two rows, a2 and a3 those 8 further. d[4 i] and d[4 i + 1]
// are columns 8 i + 2 (l % 4) and the next of the first row, d[4 i + 2] and d[4 i + 3] those of the second.
template <int N> DEVICE void wgmma(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b);
// In E4M3: a0 and a1 hold columns 4 (l % 4) to 4 (l % 4) + 3, a2 and a3 those 16 further. Without ADDS, D is
// overwritten.
template <int N, bool ADDS> struct WgmmaE4m3;

// clang-format off
#define D8 "%0, %1, %2, %3"
#define D16 D8 ", %4, %5, %6, %7"
#define D24 D16 ", %8, %9, %10, %11"
#define D32 D24 ", %12, %13, %14, %15"
#define D40 D32 ", %16, %17, %18, %19"
#define D48 D40 ", %20, %21, %22, %23"
#define D56 D48 ", %24, %25, %26, %27"
#define D64 D56 ", %28, %29, %30, %31"
#define D72 D64 ", %32, %33, %34, %35"
#define D80 D72 ", %36, %37, %38, %39"
#define D88 D80 ", %40, %41, %42, %43"
#define D96 D88 ", %44, %45, %46, %47"
#define D104 D96 ", %48, %49, %50, %51"
#define D112 D104 ", %52, %53, %54, %55"
#define D120 D112 ", %56, %57, %58, %59"
#define D128 D120 ", %60, %61, %62, %63"
#define D136 D128 ", %64, %65, %66, %67"
#define D144 D136 ", %68, %69, %70, %71"
#define D152 D144 ", %72, %73, %74, %75"
#define D160 D152 ", %76, %77, %78, %79"
#define D168 D160 ", %80, %81, %82, %83"
#define D176 D168 ", %84, %85, %86, %87"
#define D184 D176 ", %88, %89, %90, %91"
#define D192 D184 ", %92, %93, %94, %95"
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS8 FOUR(0)
#define SUMS16 SUMS8, FOUR(4)
#define SUMS24 SUMS16, FOUR(8)
#define SUMS32 SUMS24, FOUR(12)
#define SUMS40 SUMS32, FOUR(16)
#define SUMS48 SUMS40, FOUR(20)
#define SUMS56 SUMS48, FOUR(24)
#define SUMS64 SUMS56, FOUR(28)
#define SUMS72 SUMS64, FOUR(32)
#define SUMS80 SUMS72, FOUR(36)
#define SUMS88 SUMS80, FOUR(40)
#define SUMS96 SUMS88, FOUR(44)
#define SUMS104 SUMS96, FOUR(48)
#define SUMS112 SUMS104, FOUR(52)
#define SUMS120 SUMS112, FOUR(56)
#define SUMS128 SUMS120, FOUR(60)
#define SUMS136 SUMS128, FOUR(64)
#define SUMS144 SUMS136, FOUR(68)
#define SUMS152 SUMS144, FOUR(72)
#define SUMS160 SUMS152, FOUR(76)
#define SUMS168 SUMS160, FOUR(80)
#define SUMS176 SUMS168, FOUR(84)
#define SUMS184 SUMS176, FOUR(88)
#define SUMS192 SUMS184, FOUR(92)
#define WGMMA(N, A) \
    template <> __device__ __forceinline__ void wgmma<N>(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" D##N "}, " A ", 1, 1, 1, 0;" \
                     : SUMS##N : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b)); \
    }
#define WGMMA_E4M3(N, A, ADDS) \
    template <> struct WgmmaE4m3<N, ADDS> { \
        __device__ __forceinline__ static void multiply(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b) { \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" D##N "}, " A ", " #ADDS \
                         ", 1, 1;" : SUMS##N : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b)); \
        } \
    };
#define WGMMA_OF(N, A) WGMMA(N, A) WGMMA_E4M3(N, A, 0) WGMMA_E4M3(N, A, 1)
WGMMA_OF(8, "{%4, %5, %6, %7}, %8")
WGMMA_OF(16, "{%8, %9, %10, %11}, %12")
WGMMA_OF(24, "{%12, %13, %14, %15}, %16")
WGMMA_OF(32, "{%16, %17, %18, %19}, %20")
WGMMA_OF(40, "{%20, %21, %22, %23}, %24")
WGMMA_OF(48, "{%24, %25, %26, %27}, %28")
WGMMA_OF(56, "{%28, %29, %30, %31}, %32")
WGMMA_OF(64, "{%32, %33, %34, %35}, %36")
WGMMA_OF(72, "{%36, %37, %38, %39}, %40")
WGMMA_OF(80, "{%40, %41, %42, %43}, %44")
WGMMA_OF(88, "{%44, %45, %46, %47}, %48")
WGMMA_OF(96, "{%48, %49, %50, %51}, %52")
WGMMA_OF(104, "{%52, %53, %54, %55}, %56")
WGMMA_OF(112, "{%56, %57, %58, %59}, %60")
WGMMA_OF(120, "{%60, %61, %62, %63}, %64")
WGMMA_OF(128, "{%64, %65, %66, %67}, %68")
WGMMA_OF(136, "{%68, %69, %70, %71}, %72")
WGMMA_OF(144, "{%72, %73, %74, %75}, %76")
WGMMA_OF(152, "{%76, %77, %78, %79}, %80")
WGMMA_OF(160, "{%80, %81, %82, %83}, %84")
WGMMA_OF(168, "{%84, %85, %86, %87}, %88")
WGMMA_OF(176, "{%88, %89, %90, %91}, %92")
WGMMA_OF(184, "{%92, %93, %94, %95}, %96")
WGMMA_OF(192, "{%96, %97, %98, %99}, %100")
// clang-format on

template <int N, bool ADDS> DEVICE void wgmma_e4m3(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    WgmmaE4m3<N, ADDS>::multiply(d, a0, a1, a2, a3, b);
}
