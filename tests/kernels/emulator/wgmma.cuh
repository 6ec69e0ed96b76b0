#pragma once
// Replaces csrc/wgmma.cuh in tests. A product is computed as late as the kernel's waits allow, so that sums read too
// soon and memory reused too soon show.
#include "instructions.cuh"

template <int COUNT> void raise_registers() {}
template <int COUNT> void lower_registers() {}
template <int COUNT> void wgmma_fence(u32 (&)[COUNT]) {}

inline float half_of(u32 pair, int i) { return __uint_as_float(i ? pair & 0xFFFF0000u : pair << 16); }

inline void complete(const machine::Product &product) {
    int lane = threadIdx.x % 32;
    for (int token = 0; token < product.width; token++) {
        if (token % 8 / 2 != lane % 4) continue;
        for (int row = 0; row < 2; row++) {
            float sum = 0;
            for (int i = 0; i < 16; i++) {
                u64 at = (u64)product.b + token * 128 + 2 * i;  // bits 4 to 6 of an address are swizzled by bits 7 to 9
                u16 b = *(const u16 *)(at ^ (at >> 7 & 7) << 4);
                sum += half_of(product.a[row][i / 2], i % 2) * __uint_as_float((u32)b << 16);
            }
            product.d[token / 8 * 4 + row * 2 + token % 2] += sum;
        }
    }
}
inline void wgmma_commit() { machine::here->now->group++; }
template <int PENDING> void wgmma_wait() {
    machine::random_delay();
    machine::Fiber &mine = *machine::here->now;
    size_t done = 0;
    while (done < mine.products.size() && mine.products[done].group < mine.group - PENDING)
        complete(mine.products[done++]);
    mine.products.erase(mine.products.begin(), mine.products.begin() + done);
    __syncwarp();
}
inline u64 describe_swizzled(const void *b) {
    if ((u64)b % 1024) machine::fail("a swizzled operand is not at a multiple of 1024 bytes");
    return (u64)b / 16;
}
template <int N> void wgmma(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256);
    struct Words {
        u32 of[4];
    };
    auto given = machine::exchange(Words{a0, a1, a2, a3});
    machine::Product product{d, {}, (const char *)(b * 16), N, machine::here->now->group};
    for (int i = 0; i < 8; i++) {
        Words words = given(threadIdx.x % 32 / 4 * 4 + i % 4);
        for (int row = 0; row < 2; row++) product.a[row][i] = words.of[i / 4 * 2 + row];
    }
    machine::here->now->products.push_back(product);
}
