#pragma once
// The kernel ahead of an emulated one, which may still be at work when it begins: until it ends, what it writes is no
// number. With programmatic dependent launch a GPU does so.
#include "machine.hpp"

namespace machine {
struct Late {
    void *to;
    const void *from;
    uint64_t bytes;
};
enum { AT_WORK, ENDING, ENDED };
inline int ahead_state;
inline const Late *late;
inline unsigned num_late;

inline bool ahead_ended() { return __atomic_load_n(&ahead_state, __ATOMIC_ACQUIRE) == ENDED; }
inline void end_ahead() {
    int before = AT_WORK;
    if (!__atomic_compare_exchange_n(&ahead_state, &before, ENDING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
    for (unsigned i = 0; i < num_late; i++) memcpy(late[i].to, late[i].from, late[i].bytes);
    __atomic_store_n(&ahead_state, ENDED, __ATOMIC_RELEASE);
}
}  // namespace machine
