#pragma once
// Replaces csrc/instructions.cuh in tests: the same functions in C++, on the emulated machine.
#include "prior_grid.hpp"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ thread_local
#define __align__(size) __attribute__((aligned(size)))
#define __launch_bounds__(...)
#define DEVICE static inline

struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};
template <class T> T from_bits(auto bits) {
    T value;
    static_assert(sizeof(T) == sizeof(bits));
    memcpy(&value, &bits, sizeof(T));
    return value;
}
inline float __uint_as_float(u32 bits) { return from_bits<float>(bits); }
inline float __int_as_float(int bits) { return from_bits<float>(bits); }
inline u32 __float_as_uint(float x) { return from_bits<u32>(x); }
inline int __float_as_int(float x) { return from_bits<int>(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __expf(float x) { return expf(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
template <class A, class B> auto min(A a, B b) { return b < a ? b : a; }
template <class A, class B> auto max(A a, B b) { return a < b ? b : a; }
inline int read_thread() { return threadIdx.x; }
inline int __popc(u32 x) { return __builtin_popcount(x); }
inline int __ffs(u32 x) { return __builtin_ffs((int)x); }
inline long long clock64() { return 0; }
inline void __nanosleep(u32) { machine::random_delay(); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline u64 atomicAdd(u64 *p, u64 x) { return __atomic_fetch_add(p, x, __ATOMIC_ACQ_REL); }
inline void __syncwarp() { machine::exchange(0); }
inline void __syncthreads() { machine::sync_named(machine::here->named[0], blockDim.x, true); }
template <class T> T __shfl_sync(u32, T x, int lane) { return machine::exchange(x)(lane % 32); }
template <class T> T __shfl_xor_sync(u32, T x, int by) { return machine::exchange(x)((threadIdx.x % 32) ^ by); }
inline u32 __ballot_sync(u32, bool x) {
    auto given = machine::exchange(x);
    u32 bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= (u32)given(lane) << lane;
    return bits;
}
inline u32 __match_any_sync(u32, int x) {
    auto given = machine::exchange(x);
    u32 bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= (u32)(given(lane) == x) << lane;
    return bits;
}
inline u32 __reduce_max_sync(u32, u32 x) {
    auto given = machine::exchange(x);
    for (int lane = 0; lane < 32; lane++) x = max(x, given(lane));
    return x;
}

DEVICE void barrier_init(u64 *bar, u32 count) {
    machine::Barrier state{};
    state.missing = state.all = count;
    memcpy(bar, &state, 8);
}
DEVICE void barrier_expect(u64 *bar, u32 bytes) {
    machine::update((uint64_t *)bar, [&](machine::Barrier &state) { state.bytes += bytes, state.missing--; });
}
DEVICE void barrier_arrive(u64 *bar) {
    machine::update((uint64_t *)bar, [](machine::Barrier &state) { state.missing--; });
}
DEVICE void barrier_arrive_if(u64 *bar, bool is_due) {
    if (is_due) barrier_arrive(bar);
}
DEVICE void barrier_wait(u64 *bar, u32 parity) {
    machine::random_delay();
    machine::wait_until([=] { return machine::is_past((uint64_t *)bar, parity); });
}
// Faults in the thread that issues a copy, not when the copy completes.
DEVICE void must_be_readable(const void *from, u32 bytes) {
    volatile u8 first = *(const u8 *)from, last = ((const u8 *)from)[bytes - 1];
    (void)first, (void)last;
}
DEVICE void copy_bulk(void *to, const void *from, u32 bytes, u64 *bar) {
    if ((u64)to % 16 || (u64)from % 16 || bytes % 16 || !bytes) machine::fail("a copy is not of whole 16 bytes");
    must_be_readable(from, bytes), memset(to, 0xFF, bytes);
    machine::here->copies.push_back({to, from, bytes, (uint64_t *)bar});
}
DEVICE void copy_sixteen(void *to, const void *from) {
    if ((u64)to % 16 || (u64)from % 16) machine::fail("a copy is not of aligned 16 bytes");
    must_be_readable(from, 16), memset(to, 0xFF, 16);
    machine::here->now->copies.push_back({to, from, 16, nullptr});
}
DEVICE void barrier_arrive_after_copies(u64 *bar) {
    machine::here->batches.push_back({std::move(machine::here->now->copies), (uint64_t *)bar});
    machine::here->now->copies.clear();
}
DEVICE void prefetch_bulk(const void *from, u32 bytes) { must_be_readable(from, bytes); }
DEVICE void barrier_publish() {}
DEVICE void named_barrier_arrive(int id, int threads) {
    machine::sync_named(machine::here->named[id], threads, false);
    machine::random_delay();  // what follows may run late: nothing waits for it
}
DEVICE void named_barrier_sync(int id, int threads) { machine::sync_named(machine::here->named[id], threads, true); }

DEVICE void cluster_arrive() {
    machine::here->now->cluster_arrivals++;
    __atomic_fetch_add(&machine::here->cluster->arrivals, 1, __ATOMIC_ACQ_REL);
}
DEVICE void cluster_wait() {
    auto cluster = machine::here->cluster;
    machine::here->now->cluster_waits++;
    unsigned wanted = machine::here->now->cluster_arrivals * blockDim.x * machine::here->peers.size();
    machine::wait_until([=] { return __atomic_load_n(&cluster->arrivals, __ATOMIC_ACQUIRE) >= wanted; });
}
DEVICE void cluster_sync() { cluster_arrive(), cluster_wait(); }
DEVICE void store_peer(float *to, float value, u64 *bar, u32 rank) {
    *machine::in_peer(to, rank) = value;
    machine::update((uint64_t *)machine::in_peer(bar, rank), [](machine::Barrier &state) { state.bytes -= 4; });
}
DEVICE float load_peer(const float *p, u32 rank) { return *machine::in_peer(p, rank); }
DEVICE void add_shared(int *p, int x) { __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
DEVICE u64 read_acquire(const u64 *p) {
    machine::yield_fiber();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
DEVICE void write_word(u32 *p, u32 x) {
    machine::random_delay();
    __atomic_store_n(p, x, __ATOMIC_RELAXED);
}
DEVICE uint2 read_words(const u32 *p) {
    machine::yield_fiber();
    return {__atomic_load_n(p, __ATOMIC_RELAXED), __atomic_load_n(p + 1, __ATOMIC_RELAXED)};
}
DEVICE void wait_for_prior_grid() {
    machine::wait_until([] { return machine::prior_grid_ended(); });
}
DEVICE void launch_dependents() {}

DEVICE u16 nearest_bf16(float x) {
    u32 bits = __float_as_uint(x);
    return x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
DEVICE u32 narrow_pair(float low, float high) { return nearest_bf16(low) | (u32)nearest_bf16(high) << 16; }
DEVICE u32 multiply_pairs(u32 a, u32 b) {
    return narrow_pair(__uint_as_float(a << 16) * __uint_as_float(b << 16),
                       __uint_as_float(a & 0xFFFF0000u) * __uint_as_float(b & 0xFFFF0000u));
}
DEVICE float nearest_e4m3(float x) {
    if (x != x) return x;
    float size = fabsf(x), step = exp2f(fmaxf(floorf(log2f(fmaxf(size, 1e-30f))), -6) - 3);
    return copysignf(fminf(nearbyintf(size / step) * step, 448), x);
}
DEVICE u8 code_e4m3(float x) {
    if (x != x) return 0x7F;
    float size = fabsf(nearest_e4m3(x));
    int exponent = max(ilogbf(fmaxf(size, 1e-30f)), -6),
        steps = (int)ldexpf(size, 3 - exponent);  // 8 to 15, or less at -6
    return (signbit(x) ? 0x80 : 0) | (steps < 8 ? steps : (exponent + 7) * 8 + steps - 8);
}
DEVICE u16 narrow_e4m3(float low, float high) { return code_e4m3(low) | code_e4m3(high) << 8; }
DEVICE float value_e4m3(u8 code) {
    int exponent = code >> 3 & 15, steps = code & 7;
    float size = exponent ? ldexpf(8 + steps, exponent - 10) : ldexpf(steps, -9);
    return (code & 0x7F) == 0x7F ? NAN : code & 0x80 ? -size : size;
}
DEVICE void wide_e4m3(u16 codes, float &low, float &high) { low = value_e4m3(codes), high = value_e4m3(codes >> 8); }
DEVICE float max_nan(float a, float b) { return a != a || b != b ? NAN : fmaxf(a, b); }
DEVICE float min_nan(float a, float b) { return a != a || b != b ? NAN : fminf(a, b); }

DEVICE u32 permute_bytes(u32 low, u32 high, u32 choice) {
    u64 all = (u64)high << 32 | low;
    u32 bytes = 0;
    for (int i = 0; i < 4; i++) {
        u32 digit = choice >> 4 * i & 15, byte = all >> 8 * (digit & 7) & 255;
        bytes |= (digit & 8 ? byte & 128 ? 255u : 0u : byte) << 8 * i;
    }
    return bytes;
}
DEVICE u32 transpose(u32 x) {
    auto given = machine::exchange(x);
    int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    auto at = [&](int i, int j) { return given(4 * i + j / 2) >> 16 * (j % 2) & 0xFFFF; };
    return at(column, row) | at(column + 1, row) << 16;
}
DEVICE void load_matrices(u32 *words, const void *row) {
    auto given = machine::exchange(row);
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) memcpy(words + i, (const char *)given(8 * i + lane / 4) + lane % 4 * 4, 4);
}
// Both MMA shapes: lane / 4 selects a row of A (and the row 8 further) and a column of B; lane % 4 selects the columns
// of A and rows of B that the lane holds, PER values per register, and the two columns of C that it receives.
template <int PER, class C, class Get> DEVICE void multiply_parts(C *c, u32 (&mine)[6], Get get) {
    struct Given {
        u32 of[6];
    } own;
    memcpy(own.of, mine, sizeof mine);
    auto given = machine::exchange(own);
    int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; i++) {
        C sum = 0;
        for (int quarter = 0; quarter < 4; quarter++) {
            Given a = given(row * 4 + quarter), b = given((column + i % 2) * 4 + quarter);
            for (int half = 0; half < 2; half++)
                for (int j = 0; j < PER; j++) sum += get(a.of[2 * half + i / 2], j) * get(b.of[4 + half], j);
        }
        c[i] += sum;
    }
}
DEVICE void multiply_add(float *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    u32 mine[6] = {a0, a1, a2, a3, b0, b1};
    multiply_parts<2>(c, mine, [](u32 bits, int j) { return __uint_as_float(j ? bits & 0xFFFF0000u : bits << 16); });
}
DEVICE void multiply_add_bytes(int *c, const u32 *a, const u32 *b) {
    u32 mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    multiply_parts<4>(c, mine, [](u32 bits, int j) { return (int)(signed char)(bits >> 8 * j); });
}
