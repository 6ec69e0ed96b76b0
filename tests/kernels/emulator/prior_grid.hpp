#pragma once
// The prior grid of a programmatic dependent launch: it may still run when the emulated kernel starts. Until it ends,
// its outputs hold NaN bits. It ends at a random moment, which is often soon, or as late as possible: once every CTA
// has ended, or has had no thread that could run, which shows every early read.
#include "machine.hpp"

namespace machine {
struct LateInput {
    void *to;
    const void *from;
    uint64_t bytes;
};
enum { RUNNING, ENDING, ENDED };
inline int prior_grid_state;
inline bool prior_grid_ends_late;
inline unsigned num_running;  // CTAs that have not yet stalled for the first time
inline std::vector<LateInput> late_inputs;

inline bool prior_grid_ended() { return __atomic_load_n(&prior_grid_state, __ATOMIC_ACQUIRE) == ENDED; }
inline void end_prior_grid() {
    int before = RUNNING;
    if (!__atomic_compare_exchange_n(&prior_grid_state, &before, ENDING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return;
    for (const LateInput &input : late_inputs) memcpy(input.to, input.from, input.bytes);
    __atomic_store_n(&prior_grid_state, ENDED, __ATOMIC_RELEASE);
}
// Called once by every CTA: when none of its threads can run for the first time, or at its end.
inline void stall() {
    if (!__atomic_sub_fetch(&num_running, 1, __ATOMIC_ACQ_REL) && prior_grid_ends_late) end_prior_grid();
}
}  // namespace machine
