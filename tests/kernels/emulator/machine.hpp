#pragma once
// A GPU's programs on a CPU: every thread of a program is a fiber, every program a thread of the system; knows no
// kernel of ours. Fibers wait for each other as threads do on a GPU, in a random order: what only happens to work
// there is likely to fail here. Copies arrive late, and what they will overwrite is spoilt at once.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include <vector>

namespace machine {
constexpr int STACK_BYTES = 64 << 10;

struct Three { unsigned x, y, z; };
inline thread_local Three thread_index, program_index;
inline Three program_size, grid_size;

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
    unsigned count = 0, generation = 0;
    char slots[2][32][32];  // what lanes give to each other, by turns
};
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    std::function<bool()> ready;
    bool is_done = false;
    unsigned exchanges = 0, cluster_arrivals = 0;
};
struct Cluster { std::atomic<unsigned> arrivals{0}; };

struct Program {
    unsigned number, rank;
    Cluster *cluster;
    std::vector<Program *> peers;  // of the cluster
    char *memory = nullptr;        // where its shared memory begins
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Named named[16];
    std::vector<Copy> copies;
    ucontext_t scheduler;
    Fiber *now = nullptr;
    std::mt19937 random;
};
inline thread_local Program *here;
inline std::atomic<bool> failed;
inline std::string why;
inline std::chrono::steady_clock::time_point deadline;

inline void fail(const std::string &text) {
    bool before = false;
    if (failed.compare_exchange_strong(before, true)) why = text;
}
inline void pause(std::function<bool()> ready) {
    Fiber *mine = here->now;
    mine->ready = std::move(ready);
    swapcontext(&mine->context, &here->scheduler);
}
inline void wait_until(std::function<bool()> ready) {
    if (!ready()) pause(std::move(ready));
}
inline void dawdle() {
    for (unsigned turns = here->random() % 4; turns; turns--) pause([] { return true; });
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
    return (T *)((char *)p + (here->peers[rank]->memory - here->memory));
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

inline std::function<void()> *body;
inline void begin_fiber() {
    (*body)();
    here->now->is_done = true;
    swapcontext(&here->now->context, &here->scheduler);
}
inline void run_warp(Program &program, unsigned warp, bool &moved, unsigned &done) {
    for (unsigned thread = 32 * warp; thread < std::min(32 * warp + 32, program_size.x); thread++) {
        Fiber &fiber = program.fibers[thread];
        if (fiber.is_done || (fiber.ready && !fiber.ready())) continue;
        thread_index.x = thread, program.now = &fiber, moved = true;
        swapcontext(&program.scheduler, &fiber.context);
        done += fiber.is_done;
    }
}
inline void prepare(Program &program, char *memory, unsigned seed) {
    here = &program, program.memory = memory, program.random.seed(seed + program.number);
    program_index = {program.number % grid_size.x, program.number / grid_size.x % grid_size.y,
                     program.number / grid_size.x / grid_size.y};
    program.warps.resize((program_size.x + 31) / 32);
    program.fibers.resize(program_size.x);
    for (Fiber &fiber : program.fibers) {
        fiber.stack.reset(new char[STACK_BYTES]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK_BYTES;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, begin_fiber, 0);
    }
}
inline void run(Program &program) {
    for (unsigned done = 0; done < program_size.x && !failed;) {
        bool moved = !program.copies.empty();
        unsigned first = program.random() % program.warps.size();
        for (unsigned i = 0; i < program.warps.size(); i++)
            run_warp(program, (first + i) % program.warps.size(), moved, done);
        arrive_copies(program);
        if (moved) continue;
        sched_yield();
        if (std::chrono::steady_clock::now() > deadline)
            fail("program " + std::to_string(program.number) + ": " + std::to_string(program_size.x - done) +
                 " threads wait for what never comes");
    }
    if (!program.copies.empty()) fail("program " + std::to_string(program.number) + " ended before its copies came");
}
}  // namespace machine

#define threadIdx machine::thread_index
#define blockIdx machine::program_index
#define blockDim machine::program_size
#define gridDim machine::grid_size
