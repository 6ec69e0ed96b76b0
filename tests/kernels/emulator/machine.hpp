#pragma once
// Emulates CTAs on a CPU: every CTA is an OS thread and every thread of a CTA is a fiber. Fibers run in random order,
// so code that works by luck on a GPU is likely to fail here. Copies complete late, and their destination is
// overwritten with NaN bits as soon as they are issued. Includes few C++ headers: parsing them would take longer than a
// kernel.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdlib.h>
#include <time.h>
#include <vector>

#include "fiber.hpp"

namespace machine {
constexpr unsigned MOST_TURNS = 16;     // of a warp, before the next warp runs
constexpr unsigned SLEEP_ONE_IN = 32;   // turns of a warp put it to sleep
constexpr unsigned LONGEST_SLEEP = 64;  // turns of the CTA
constexpr char UNTOUCHED = 0x5A;        // canary where nothing may write
constexpr int UNTOUCHED_BYTES = 128;

struct Three {
    unsigned x, y, z;
};
inline thread_local Three thread_index, cta_index;
inline Three cta_size, grid_size;

struct Random {  // xorshift64*
    uint64_t state;
    explicit Random(uint64_t seed = 1) : state(seed * 0x9E3779B97F4A7C15u | 1) {}
    unsigned operator()() {
        state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
        return (unsigned)(state * 0x2545F4914F6CDD1Du >> 32);
    }
};
// State of an mbarrier in 8 bytes: pending and expected arrivals, pending bytes, phase.
struct Barrier {
    int64_t bytes : 30;
    uint64_t missing : 16, all : 16, phase : 1, spare : 1;
};
static_assert(sizeof(Barrier) == 8);

struct Copy {
    void *to;
    const void *from;
    unsigned bytes;
    uint64_t *bar;
};
struct Batch {  // small copies of a thread, and the barrier at which it arrives when all are complete
    std::vector<Copy> copies;
    uint64_t *bar;
};
// A wgmma that is not complete: it reads B and writes D at any time until the thread waits for it.
struct Product {
    float *d;
    uint32_t a[2][8];  // of the lane's two rows: pairs of 16 columns, or fours of 32
    const char *b;
    int width, group;
    bool is_e4m3, adds;  // in bf16 all add
};
struct Named {
    unsigned count = 0, generation = 0;
};
struct Warp {
    unsigned count = 0, generation = 0, asleep = 0;  // turns of the CTA left to sleep
    char slots[2][32][32];                           // exchanged values, double-buffered
};
struct Fiber {
    Context context;
    char *stack = nullptr;
    bool (*is_ready)(const void *) = nullptr;  // called with `asked`, which is on the fiber's stack
    const void *asked = nullptr;
    bool is_done = false;
    std::vector<Copy> copies;  // small ones, not yet in a batch
    std::vector<Product> products;
    int group = 0;  // of the next product
    unsigned exchanges = 0, cluster_arrivals = 0, cluster_waits = 0;
};
struct Cluster {
    unsigned arrivals = 0;
};

struct Cta {
    unsigned number, rank;
    Cluster *cluster;
    std::vector<Cta *> peers;  // CTAs of the cluster
    char *memory = nullptr;    // start of its shared memory
    char *stacks = nullptr;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Named named[16];
    std::vector<Copy> copies;
    std::vector<Batch> batches;
    Context scheduler;
    Fiber *now = nullptr;
    Random random;
    int is_over = 0;
    pthread_t thread;
    sigjmp_buf escape;  // where a fault leads
};
inline thread_local Cta *here;

inline int has_failed;
inline char why[256];
inline double deadline;

inline double seconds_now() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}
template <class... Parts> void fail(const char *format, Parts... parts) {
    int before = 0;
    if (__atomic_compare_exchange_n(&has_failed, &before, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        snprintf(why, sizeof why, format, parts...);
}

template <class Ready> void pause(const Ready &ready) {
    Cta *cta = here;
    Fiber *mine = cta->now;
    mine->is_ready = [](const void *asked) { return (*(const Ready *)asked)(); };
    mine->asked = &ready;
    mine->context.go(cta->scheduler);
}
template <class Ready> void wait_until(const Ready &ready) {
    if (!ready()) pause(ready);
}
inline void yield_fiber() {
    pause([] { return true; });
}
inline void random_delay() {
    for (unsigned turns = here->random() % 4; turns; turns--) yield_fiber();
}

template <class Change> void update(uint64_t *bar, Change how) {
    uint64_t old = __atomic_load_n(bar, __ATOMIC_ACQUIRE), made;
    do {
        Barrier state;
        memcpy(&state, &old, 8);
        how(state);
        if (!state.missing && !state.bytes) state.phase ^= 1, state.missing = state.all;
        memcpy(&made, &state, 8);
    } while (!__atomic_compare_exchange_n(bar, &old, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
}
inline bool is_past(const uint64_t *bar, unsigned parity) {
    uint64_t bits = __atomic_load_n(bar, __ATOMIC_ACQUIRE);
    Barrier state;
    memcpy(&state, &bits, 8);
    return state.phase != parity;
}

inline void sync_named(Named &barrier, unsigned threads, bool waits) {
    unsigned generation = barrier.generation;
    if (++barrier.count == threads) barrier.count = 0, barrier.generation++;
    else if (waits) wait_until([&barrier, generation] { return barrier.generation != generation; });
}
// Every lane passes a value; the result, called with a lane, returns that lane's value.
template <class T> auto exchange(const T &mine) {
    static_assert(sizeof(T) <= 32);
    Warp &warp = here->warps[thread_index.x / 32];
    auto slots = warp.slots[here->now->exchanges++ % 2];
    memcpy(slots[thread_index.x % 32], &mine, sizeof(T));
    unsigned generation = warp.generation;
    if (++warp.count == 32) warp.count = 0, warp.generation++;
    else wait_until([&warp, generation] { return warp.generation != generation; });
    return [slots](int lane) {
        T given;
        memcpy(&given, slots[lane], sizeof(T));
        return given;
    };
}
// Translates an address in this CTA's shared memory to CTA `rank` of the cluster.
template <class T> T *in_peer(T *p, unsigned rank) {
    Cta &peer = *here->peers[rank];
    if (__atomic_load_n(&peer.is_over, __ATOMIC_ACQUIRE)) fail("CTA %u ended before its peer was done", peer.number);
    return (T *)((char *)p + (peer.memory - here->memory));
}

inline void complete_some_copies(Cta &cta) {
    for (size_t left = cta.copies.size(); left; left--) {
        size_t which = cta.random() % cta.copies.size();
        if (cta.random() % 2) continue;
        Copy copy = cta.copies[which];
        cta.copies.erase(cta.copies.begin() + which);
        memcpy(copy.to, copy.from, copy.bytes);
        update(copy.bar, [&](Barrier &state) { state.bytes -= copy.bytes; });
    }
    for (size_t left = cta.batches.size(); left; left--) {
        size_t which = cta.random() % cta.batches.size();
        if (cta.random() % 2) continue;
        Batch batch = std::move(cta.batches[which]);
        cta.batches.erase(cta.batches.begin() + which);
        for (const Copy &copy : batch.copies) memcpy(copy.to, copy.from, copy.bytes);
        update(batch.bar, [](Barrier &state) { state.missing--; });
    }
}
}  // namespace machine

#define threadIdx machine::thread_index
#define blockIdx machine::cta_index
#define blockDim machine::cta_size
#define gridDim machine::grid_size
