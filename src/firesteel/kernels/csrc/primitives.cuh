#pragma once
// Single instructions and the numbers they work on; knows no kernel.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE void barrier_init(u64 *bar, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count));
}
DEVICE void barrier_expect(u64 *bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u64 *bar) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
DEVICE void barrier_wait(u64 *bar, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again;\n}"
        ::"r"(shared_address(bar)), "r"(parity) : "memory");
}
DEVICE void copy_bulk(void *to, const void *from, u32 bytes, u64 *bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
DEVICE void prefetch_bulk(const void *from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// After the barriers were made, by the thread that made them: bulk copies see them too.
DEVICE void barrier_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void arrive_some(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEVICE void sync_some(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// Into the shared memory of the cluster's program `rank`, where it counts for the barrier's bytes.
DEVICE void store_there(float *to, float value, u64 *bar, u32 rank) {
    u32 there, barrier;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(to)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(shared_address(bar)), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 ::"r"(there), "r"(__float_as_uint(value)), "r"(barrier) : "memory");
}

#ifdef DELAYS  // tests: programs dawdle where an order that is only likely would show
DEVICE void dawdle() {
    u32 n = (u32)clock64() * 2654435761u ^ blockIdx.x * 40503u;
    __nanosleep(n >> 18);
}
#else
DEVICE void dawdle() {}
#endif

// With dependent launch: when this returns, all that the kernel ahead of this one wrote is there. Every program
// waits before it reads or writes what others do and before it ends, so that the end of a kernel means the end of
// all before it.
DEVICE void wait_for_inputs() {
    dawdle();
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
// Once every program has said so, those of the next kernel begin: what that one reads before its own wait must have
// been final when the kernel ahead of this one ended.
DEVICE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

DEVICE float wide_low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float wide_high(u32 pair) { return __uint_as_float(pair & 0xFFFF0000u); }
DEVICE u32 narrow_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
DEVICE float wide(u16 one) { return __uint_as_float((u32)one << 16); }
DEVICE u16 narrow(float one) { return (u16)narrow_pair(one, 0.f); }
DEVICE float round_bf16(float one) { return wide(narrow(one)); }

// What is no number stays so: it must reach the logits, where it is found out.
DEVICE float larger(float a, float b) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
DEVICE float smaller(float a, float b) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

DEVICE void multiply_add(float *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void multiply_add_bytes(int *c, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// E2M1 codes as bytes of twice their size: a byte permutation looks four of them up, and gives 0 for those with the
// sign set. So positive and negative values come out apart, to be multiplied by x and by -x. `small` is 0x03020100.
DEVICE u32 twice_positive(u32 small, u32 codes) {
    u32 bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(small), "r"(0x0C080604u), "r"(codes));
    return bytes;
}
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
