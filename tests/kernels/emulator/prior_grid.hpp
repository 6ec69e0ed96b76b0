#pragma once
// The prior grid of a programmatic dependent launch: it may still run when the emulated kernel starts. Until it ends,
// its outputs hold NaN bits.
#include "machine.hpp"

namespace machine {
struct LateInput {
    void *to;
    const void *from;
    uint64_t bytes;
};
enum { RUNNING, ENDING, ENDED };
inline int prior_grid_state;
inline const LateInput *late;
inline unsigned num_late;

inline bool prior_grid_ended() { return __atomic_load_n(&prior_grid_state, __ATOMIC_ACQUIRE) == ENDED; }
inline void end_prior_grid() {
    int before = RUNNING;
    if (!__atomic_compare_exchange_n(&prior_grid_state, &before, ENDING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return;
    for (unsigned i = 0; i < num_late; i++) memcpy(late[i].to, late[i].from, late[i].bytes);
    __atomic_store_n(&prior_grid_state, ENDED, __ATOMIC_RELEASE);
}
}  // namespace machine
