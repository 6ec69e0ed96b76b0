#pragma once
// Who of a program goes on next, until all its threads are done or the time is up.
#include <sys/mman.h>

#include "ahead.hpp"

namespace machine {
inline void (*body)(const uint64_t *);
inline const uint64_t *arguments;

inline void begin_fiber() {
    body(arguments);
    here->now->is_done = true;
    here->now->place.go(here->scheduler);
}
// Those of its threads that `chosen` has a bit for; whether one of them could go on.
inline bool run_lanes(Program &program, unsigned warp, unsigned chosen, unsigned &done) {
    bool moved = false;
    unsigned first = 32 * warp, count = program_size.x - first < 32 ? program_size.x - first : 32;
    unsigned turn = program.random() % 32;
    for (unsigned i = 0; i < count; i++) {
        unsigned thread = first + (i + turn) % count;
        Fiber &fiber = program.fibers[thread];
        if (!(chosen >> thread % 32 & 1) || fiber.is_done || (fiber.is_ready && !fiber.is_ready(fiber.asked))) continue;
        thread_index.x = thread, program.now = &fiber, moved = true;
        program.scheduler.go(fiber.place);
        done += fiber.is_done;
    }
    return moved;
}
// A warp's turns: some now and then end with half of its lanes, and it falls asleep over that.
inline bool run_warp(Program &program, unsigned warp, unsigned &done) {
    unsigned &asleep = program.warps[warp].asleep;
    if (asleep) return asleep--, true;
    bool moved = false;
    for (unsigned turns = 1 + program.random() % MOST_TURNS; turns; turns--) {
        bool lags = program.random() % SLEEP_ONE_IN == 0;
        if (!run_lanes(program, warp, lags ? program.random() : ~0u, done)) break;
        moved = true;
        if (!lags) continue;
        asleep = program.random() % LONGEST_SLEEP;
        break;
    }
    return moved;
}
inline bool is_untouched(const char *from, int bytes) {
    for (int i = 0; i < bytes; i++)
        if (from[i] != UNTOUCHED) return false;
    return true;
}
inline void prepare(Program &program, char *memory, unsigned seed) {
    here = &program, program.memory = memory, program.random = Random(seed * 65537ull + program.number);
    program_index = {program.number % grid_size.x, program.number / grid_size.x % grid_size.y,
                     program.number / grid_size.x / grid_size.y};
    program.warps.resize((program_size.x + 31) / 32);
    program.fibers.resize(program_size.x);
    program.stacks = (char *)mmap(nullptr, (size_t)program_size.x * STACK_BYTES, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (program.stacks == MAP_FAILED) {
        perror("no memory for the stacks of an emulated program");
        abort();
    }
    for (unsigned i = 0; i < program_size.x; i++) {
        Fiber &fiber = program.fibers[i];
        fiber.stack = program.stacks + (size_t)i * STACK_BYTES;
        memset(fiber.stack, UNTOUCHED, UNTOUCHED_BYTES);
        fiber.place.begin(fiber.stack, begin_fiber);
    }
}
inline void run(Program &program) {
    for (unsigned done = 0; done < program_size.x && !__atomic_load_n(&has_failed, __ATOMIC_ACQUIRE);) {
        bool moved = !program.copies.empty();
        unsigned first = program.random() % program.warps.size();
        for (unsigned i = 0; i < program.warps.size(); i++)
            moved |= run_warp(program, (first + i) % program.warps.size(), done);
        if (done == program_size.x) break;
        arrive_copies(program);
        if (program.random() % 32 == 0) end_ahead();
        if (!moved) sched_yield();
        if (seconds_now() > deadline)
            fail("program %u: %u threads wait for what never comes", program.number, program_size.x - done);
    }
}
inline void check_end(Program &program, const char *behind) {
    if (!program.copies.empty()) fail("program %u ended before its copies came", program.number);
    if (!is_untouched(behind, UNTOUCHED_BYTES)) fail("program %u wrote behind its shared memory", program.number);
    for (const Fiber &fiber : program.fibers)
        if (!is_untouched(fiber.stack, UNTOUCHED_BYTES)) fail("a thread of program %u needs more stack", program.number);
#ifdef ALL_ARRIVE  // for compute-sanitizer's racecheck, which lets no part of a program through
    for (const Fiber &fiber : program.fibers)
        if (fiber.is_done && fiber.cluster_arrivals != fiber.cluster_waits)
            fail("a thread of program %u does not wait for its cluster as often as it arrives", program.number);
#endif
    munmap(program.stacks, (size_t)program_size.x * STACK_BYTES);
}
}  // namespace machine
