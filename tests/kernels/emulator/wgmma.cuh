#pragma once
// Replaces csrc/wgmma.cuh in tests. A product is computed as late as the kernel's waits allow, so that sums read too
// soon and memory reused too soon show.
#include "instructions.cuh"

template <int COUNT> void raise_registers() {}
template <int COUNT> void lower_registers() {}
template <int COUNT> void wgmma_fence(u32 (&)[COUNT]) {}

inline float half_of(u32 pair, int i) { return __uint_as_float(i ? pair & 0xFFFF0000u : pair << 16); }

// The hardware keeps about 14 bits of a sum of E4M3 products: all terms are shifted to the largest one's exponent.
constexpr int BITS_OF_E4M3_SUMS = 14;

inline void complete_e4m3(const machine::Product &product) {
    int lane = threadIdx.x % 32;
    for (int column = 0; column < product.width; column++) {
        if (column % 8 / 2 != lane % 4) continue;
        for (int row = 0; row < 2; row++) {
            float &d = product.d[column / 8 * 4 + row * 2 + column % 2];
            double terms[33] = {product.adds ? d : 0};
            double largest = fabs(terms[0]), sum = 0;
            for (int k = 0; k < 32; k++) {
                u64 at = (u64)product.b + column * 64 + k;  // bits 4 and 5 of an address are swizzled by bits 7 and 8
                float b = value_e4m3(*(const u8 *)(at ^ (at >> 7 & 3) << 4));
                terms[k + 1] = (double)value_e4m3(product.a[row][k / 4] >> k % 4 * 8) * b;
                largest = fmax(largest, fabs(terms[k + 1]));
            }
            double step = largest > 0 ? exp2(floor(log2(largest)) + 1 - BITS_OF_E4M3_SUMS) : 1;
            for (double term : terms) sum += trunc(term / step) * step;
            d = (float)sum;
        }
    }
}
inline void complete(const machine::Product &product) {
    if (product.is_e4m3) return complete_e4m3(product);
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
inline u64 describe_swizzled_bytes(const void *b) {
    if ((u64)b % 512) machine::fail("a swizzled operand is not at a multiple of 512 bytes");
    return (u64)b / 16;
}
template <int COUNT> void wgmma_hold(float (&)[COUNT]) {}

template <int N> void begin(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b, bool is_e4m3, bool adds) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256);
    struct Words {
        u32 of[4];
    };
    auto given = machine::exchange(Words{a0, a1, a2, a3});
    machine::Product product{d, {}, (const char *)(b * 16), N, machine::here->now->group, is_e4m3, adds};
    for (int i = 0; i < 8; i++) {
        Words words = given(threadIdx.x % 32 / 4 * 4 + i % 4);
        for (int row = 0; row < 2; row++) product.a[row][i] = words.of[i / 4 * 2 + row];
    }
    machine::here->now->products.push_back(product);
}
template <int N> void wgmma(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    begin<N>(d, a0, a1, a2, a3, b, false, true);
}
template <int N, bool ADDS> void wgmma_e4m3(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    begin<N>(d, a0, a1, a2, a3, b, true, ADDS);
}
