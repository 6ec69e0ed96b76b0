#pragma once
// A GPU's programs on a CPU: every thread of a program is a fiber, every program a thread of the system; knows no
// kernel of ours. Fibers wait for each other as threads do on a GPU, in a random order: what only happens to work
// there is likely to fail here. Copies arrive late, and what they will overwrite is spoilt at once.
// Few headers of C++: reading them would take longer than a kernel.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <vector>

#include "fiber.hpp"

namespace machine {
constexpr unsigned MOST_TURNS = 16;            // of a warp, before the next has its own
constexpr unsigned SLEEP_ONE_IN = 32;          // turns, after which a warp lags behind all others
constexpr unsigned LONGEST_SLEEP = 64;
constexpr char UNTOUCHED = 0x5A;     // what lies where nobody may write
constexpr int UNTOUCHED_BYTES = 128;

struct Three { unsigned x, y, z; };
inline thread_local Three thread_index, program_index;
inline Three program_size, grid_size;

struct Random {  // xorshift64*
    uint64_t state;
    explicit Random(uint64_t seed = 1) : state(seed * 0x9E3779B97F4A7C15u | 1) {}
    unsigned operator()() {
        state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
        return (unsigned)(state * 0x2545F4914F6CDD1Du >> 32);
    }
};
// What a barrier of the GPU keeps in eight bytes: arrivals that are missing and in all, bytes that are missing, phase.
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
struct Named { unsigned count = 0, generation = 0; };
struct Warp {
    unsigned count = 0, generation = 0, asleep = 0;  // for so many turns of the program
    char slots[2][32][32];  // what lanes give to each other, by turns
};
struct Fiber {
    Place place;
    char *stack = nullptr;
    bool (*is_ready)(const void *) = nullptr;  // with `asked`, which lies on its own stack
    const void *asked = nullptr;
    bool is_done = false;
    unsigned exchanges = 0, cluster_arrivals = 0, cluster_waits = 0;
};
struct Cluster { unsigned arrivals = 0; };

struct Program {
    unsigned number, rank;
    Cluster *cluster;
    std::vector<Program *> peers;  // of the cluster
    char *memory = nullptr;        // where its shared memory begins
    char *stacks = nullptr;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Named named[16];
    std::vector<Copy> copies;
    Place scheduler;
    Fiber *now = nullptr;
    Random random;
    int is_over = 0;
};
inline thread_local Program *here;

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
    Program *program = here;
    Fiber *mine = program->now;
    mine->is_ready = [](const void *asked) { return (*(const Ready *)asked)(); };
    mine->asked = &ready;
    mine->place.go(program->scheduler);
}
template <class Ready> void wait_until(const Ready &ready) {
    if (!ready()) pause(ready);
}
inline void let_others() { pause([] { return true; }); }
inline void dawdle() {
    for (unsigned turns = here->random() % 4; turns; turns--) let_others();
}

template <class Change> void change(uint64_t *bar, Change how) {
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

inline void meet(Named &barrier, unsigned threads, bool waits) {
    unsigned generation = barrier.generation;
    if (++barrier.count == threads) barrier.count = 0, barrier.generation++;
    else if (waits) wait_until([&barrier, generation] { return barrier.generation != generation; });
}
// All lanes give a value; `slot(lane)` is what one gave.
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
// Where something of this program's shared memory lies in that of the cluster's program `rank`.
template <class T> T *there(T *p, unsigned rank) {
    Program &peer = *here->peers[rank];
    if (__atomic_load_n(&peer.is_over, __ATOMIC_ACQUIRE)) fail("program %u ended before its peer was done", peer.number);
    return (T *)((char *)p + (peer.memory - here->memory));
}

inline void arrive_copies(Program &program) {
    for (size_t left = program.copies.size(); left; left--) {
        size_t which = program.random() % program.copies.size();
        if (program.random() % 2) continue;
        Copy one = program.copies[which];
        program.copies.erase(program.copies.begin() + which);
        memcpy(one.to, one.from, one.bytes);
        change(one.bar, [&](Barrier &state) { state.bytes -= one.bytes; });
    }
}
}  // namespace machine

#define threadIdx machine::thread_index
#define blockIdx machine::program_index
#define blockDim machine::program_size
#define gridDim machine::grid_size
