#pragma once
// Scheduler of a CTA's fibers: runs them until all are done or the deadline passes.
#include <sys/mman.h>

#include "prior_grid.hpp"

namespace machine {
inline void (*body)(const uint64_t *);
inline const uint64_t *arguments;

inline void start_fiber() {
    body(arguments);
    here->now->is_done = true;
    here->now->context.go(here->scheduler);
}
// Runs the lanes of a warp whose bit is set in `chosen`; returns true if one of them made progress.
inline bool run_lanes(Cta &cta, unsigned warp, unsigned chosen, unsigned &done) {
    bool moved = false;
    unsigned first = 32 * warp, count = cta_size.x - first < 32 ? cta_size.x - first : 32;
    unsigned turn = cta.random() % 32;
    for (unsigned i = 0; i < count; i++) {
        unsigned thread = first + (i + turn) % count;
        Fiber &fiber = cta.fibers[thread];
        if (!(chosen >> thread % 32 & 1) || fiber.is_done || (fiber.is_ready && !fiber.is_ready(fiber.asked))) continue;
        thread_index.x = thread, cta.now = &fiber, moved = true;
        cta.scheduler.go(fiber.context);
        done += fiber.is_done;
    }
    return moved;
}
// Runs a warp for some turns. Now and then it runs only some of its lanes and then sleeps.
inline bool run_warp(Cta &cta, unsigned warp, unsigned &done) {
    unsigned &asleep = cta.warps[warp].asleep;
    if (asleep) return asleep--, true;
    bool moved = false;
    for (unsigned turns = 1 + cta.random() % MOST_TURNS; turns; turns--) {
        bool lags = cta.random() % SLEEP_ONE_IN == 0;
        if (!run_lanes(cta, warp, lags ? cta.random() : ~0u, done)) break;
        moved = true;
        if (!lags) continue;
        asleep = cta.random() % LONGEST_SLEEP;
        break;
    }
    return moved;
}
inline bool is_untouched(const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (from[i] != UNTOUCHED) return false;
    return true;
}
inline void prepare(Cta &cta, char *memory, unsigned seed) {
    here = &cta, cta.memory = memory, cta.random = Random(seed * 65537ull + cta.number);
    cta_index = {cta.number % grid_size.x, cta.number / grid_size.x % grid_size.y,
                 cta.number / grid_size.x / grid_size.y};
    cta.warps.resize((cta_size.x + 31) / 32);
    cta.fibers.resize(cta_size.x);
    cta.stacks = (char *)mmap(nullptr, (size_t)cta_size.x * STACK_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cta.stacks == MAP_FAILED) {
        perror("no memory for the stacks of an emulated CTA");
        abort();
    }
    for (unsigned i = 0; i < cta_size.x; i++) {
        Fiber &fiber = cta.fibers[i];
        fiber.stack = cta.stacks + (size_t)i * STACK_BYTES;
        memset(fiber.stack, UNTOUCHED, UNTOUCHED_BYTES);
        fiber.context.begin(fiber.stack, start_fiber);
    }
}
inline void run(Cta &cta) {
    bool has_stalled = false;
    for (unsigned done = 0; done < cta_size.x && !__atomic_load_n(&has_failed, __ATOMIC_ACQUIRE);) {
        bool moved = !cta.copies.empty() || !cta.batches.empty();
        unsigned first = cta.random() % cta.warps.size();
        for (unsigned i = 0; i < cta.warps.size(); i++) moved |= run_warp(cta, (first + i) % cta.warps.size(), done);
        if (done == cta_size.x) break;
        complete_some_copies(cta);
        if (!prior_grid_ends_late && cta.random() % 32 == 0) end_prior_grid();
        if (!moved && !has_stalled) has_stalled = true, stall();
        if (!moved) sched_yield();
        if (seconds_now() > deadline)
            fail("CTA %u: %u threads wait for what never happens", cta.number, cta_size.x - done);
    }
    if (!has_stalled) stall();
}
inline void check_end(Cta &cta, const char *behind) {
    if (!cta.copies.empty() || !cta.batches.empty()) fail("CTA %u ended before its copies completed", cta.number);
    for (const Fiber &fiber : cta.fibers)
        if (fiber.is_done && !fiber.products.empty()) fail("a thread of CTA %u ended before its products", cta.number);
    if (!is_untouched(behind, UNTOUCHED_BYTES)) fail("CTA %u wrote past the end of its shared memory", cta.number);
    for (const Fiber &fiber : cta.fibers)
        if (!is_untouched(fiber.stack, UNTOUCHED_BYTES)) fail("a thread of CTA %u needs more stack", cta.number);
#ifdef ALL_ARRIVE  // racecheck lets only whole CTAs through a cluster barrier
    for (const Fiber &fiber : cta.fibers)
        if (fiber.is_done && fiber.cluster_arrivals != fiber.cluster_waits)
            fail("a thread of CTA %u arrives at the cluster barrier more often than it waits", cta.number);
#endif
    munmap(cta.stacks, (size_t)cta_size.x * STACK_BYTES);
}
}  // namespace machine
