#pragma once
// Wrappers of single PTX instructions. All inline assembly is in this file and in wgmma.cuh, so that tests can replace
// it and run the kernels without a GPU (tests/kernels/emulator).
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__

// threadIdx.x, read again each time: no register holds it, or what was computed from it, between two calls.
DEVICE int read_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE void barrier_init(u64 *bar, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count));
}
DEVICE void barrier_expect(u64 *bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u64 *bar) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
DEVICE void barrier_arrive_if(u64 *bar, bool is_due) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared.b64 _, [%0];\n}"
                 :
                 : "r"(shared_address(bar)), "r"((u32)is_due)
                 : "memory");
}
DEVICE void barrier_wait(u64 *bar, u32 parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again;\n}"
                 :
                 : "r"(shared_address(bar)), "r"(parity)
                 : "memory");
}
DEVICE void copy_bulk(void *to, const void *from, u32 bytes, u64 *bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar))
                 : "memory");
}
// Copies 16 bytes asynchronously, past L1. L2 fetches the 128 bytes around them.
DEVICE void copy_sixteen(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Arrives at the barrier once all of this thread's `copy_sixteen` so far are complete.
DEVICE void barrier_arrive_after_copies(u64 *bar) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}
DEVICE void prefetch_bulk(const void *from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Makes initialised barriers visible to bulk copies. Called by the thread that initialised them.
DEVICE void barrier_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEVICE void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// Stores into the shared memory of CTA `rank` of the cluster and counts 4 bytes towards its barrier.
DEVICE void store_peer(float *to, float value, u64 *bar, u32 rank) {
    u32 there, barrier;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(to)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(shared_address(bar)), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :
                 : "r"(there), "r"(__float_as_uint(value)), "r"(barrier)
                 : "memory");
}
// Loads from the shared memory of CTA `rank` of the cluster, at the offset that `p` has here.
DEVICE float load_peer(const float *p, u32 rank) {
    u32 there;
    float x;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
    return x;
}
// Barrier of all CTAs of the cluster. Called by whole warps.
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE void add_shared(int *p, int x) { atomicAdd(p, x); }
DEVICE u64 read_acquire(const u64 *p) {
    u64 seen;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(p) : "memory");
    return seen;
}

// Relaxed accesses to words that other CTAs access at the same time. They order no other memory access.
DEVICE void write_word(u32 *p, u32 x) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
DEVICE uint2 read_words(const u32 *p) {
    uint2 seen;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(seen.x), "=r"(seen.y) : "l"(p) : "memory");
    return seen;
}

// With dependent launch: waits until the previous kernel has ended and its writes are visible.
DEVICE void wait_for_prior_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Once every CTA has called this, the next kernel may start. What the next kernel reads before its own wait must have
// been final when the kernel before this one ended.
DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

DEVICE u32 narrow_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
// Products of two pairs of bf16, rounded to nearest; subnormal numbers count.
DEVICE u32 multiply_pairs(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
// Rounds two values to E4M3, saturating to its largest finite value.
DEVICE u16 narrow_e4m3(float low, float high) {
    u16 codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}
DEVICE void wide_e4m3(u16 codes, float &low, float &high) {
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    asm("{ .reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(low), "=f"(high)
        : "r"(halves));
}
// NaN propagates to the logits, where the engine detects it.
DEVICE float max_nan(float a, float b) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
DEVICE float min_nan(float a, float b) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}

// prmt: each of the low four hex digits of `choice` selects one of the eight bytes of `low` and `high`; a digit of 8 or
// more replicates the selected byte's sign bit instead.
DEVICE u32 permute_bytes(u32 low, u32 high, u32 choice) {
    u32 bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(choice));
    return bytes;
}
// Transposes an 8 x 8 matrix of 16-bit values; each lane holds two neighbours of a row, four lanes per row.
DEVICE u32 transpose(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
// Loads four 8 x 8 matrices of 16-bit values: lane l gives the address of row l % 8 of matrix l / 8, and receives of
// each matrix two neighbours of row l / 4.
DEVICE void load_matrices(u32 *words, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
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
