#pragma once
// During a launch tensors are copies between inaccessible pages, so that an access past the end of one is a fault. What
// is written before the begin, and in the last 16 bytes past the end, is found after the launch. A fault in a CTA's
// thread fails the launch and says what was accessed.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "schedule.hpp"

namespace machine {
constexpr size_t GUARD_BYTES = 64 << 10;  // inaccessible, on each side
constexpr size_t ALIGNMENT = 16;          // the most that kernels rely on; copies keep it
constexpr size_t SIGNAL_STACK_BYTES = 64 << 10;

struct Area {  // memory of a tensor, or of several that overlap
    char *from;
    uint64_t bytes;
    unsigned argument;  // the first of them
};
struct Guarded {
    Area area;
    char *room, *to;  // memory between guard pages; the copy in it
    size_t room_bytes;

    // The copy ends where the room ends, up to the alignment.
    explicit Guarded(const Area &area) : area(area) {
        size_t before = (size_t)area.from % ALIGNMENT, page = getpagesize();
        size_t used = (before + area.bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        room_bytes = (used + page - 1) / page * page;
        void *all = mmap(nullptr, room_bytes + 2 * GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        room = (char *)all + GUARD_BYTES;
        if (all == MAP_FAILED || mprotect(room, room_bytes, PROT_READ | PROT_WRITE)) {
            perror("no memory for a tensor of an emulated kernel");
            abort();
        }
        to = room + room_bytes - used + before;
        memset(room, UNTOUCHED, room_bytes), memcpy(to, area.from, area.bytes);
    }
    void copy_back() {
        char *end = to + area.bytes;
        if (!is_untouched(room, to - room)) fail("wrote before the begin of argument %u", area.argument);
        if (!is_untouched(end, room + room_bytes - end)) fail("wrote past the end of argument %u", area.argument);
        memcpy(area.from, to, area.bytes);
        munmap(room - GUARD_BYTES, room_bytes + 2 * GUARD_BYTES);
    }
    bool is_in_guard(const char *p) const { return room - GUARD_BYTES <= p && p < room + room_bytes + GUARD_BYTES; }
};
inline std::vector<Guarded> guarded;
inline std::vector<Cta> *running;

// Returns `slots` with the addresses of copies. `area_of` has the area of each tensor among them, and -1 for other
// slots.
inline std::vector<uint64_t> guard_tensors(const uint64_t *slots, const int *area_of, int num_slots, const Area *areas,
                                           unsigned num_areas) {
    for (unsigned i = 0; i < num_areas; i++) guarded.emplace_back(areas[i]);
    std::vector<uint64_t> result(slots, slots + num_slots);
    for (int i = 0; i < num_slots; i++)
        if (area_of[i] >= 0) result[i] += guarded[area_of[i]].to - guarded[area_of[i]].area.from;
    return result;
}
inline void free_guarded_tensors() {
    for (Guarded &tensor : guarded) tensor.copy_back();
    guarded.clear();
}
inline char *find_copy(char *p) {
    for (const Guarded &tensor : guarded)
        if (tensor.area.from <= p && p < tensor.area.from + tensor.area.bytes)
            return tensor.to + (p - tensor.area.from);
    return p;
}

inline const void *library_of(const void *code) {
    Dl_info info;
    return dladdr(code, &info) ? info.dli_fbase : nullptr;
}
// Returns true if the fault is the kernel's own. After one in malloc, say, the process could not go on.
inline bool describe_fault(const Cta &cta, const siginfo_t *fault, const void *code) {
    char *at = (char *)fault->si_addr;
    const char *format = "CTA %u, thread %u reads or writes %td bytes %s argument %u";
    for (const Guarded &tensor : guarded)
        if (tensor.is_in_guard(at)) {
            char *end = tensor.to + tensor.area.bytes;
            if (at < tensor.to)
                fail(format, cta.number, thread_index.x, tensor.to - at, "before", tensor.area.argument);
            else fail(format, cta.number, thread_index.x, at - end, "past the end of", tensor.area.argument);
            return true;
        }
    if (library_of(code) != library_of((const void *)library_of)) return false;
    fail("CTA %u, thread %u reads or writes at %p", cta.number, thread_index.x, at);
    return true;
}
inline struct sigaction others[2];  // handlers of SIGSEGV and SIGBUS, which also serve other threads
inline void on_fault(int number, siginfo_t *fault, void *context) {
#ifdef __x86_64__
    const void *code = (const void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#else
    const void *code = nullptr;
#endif
    for (Cta &cta : *running)
        if (pthread_equal(cta.thread, pthread_self()) && describe_fault(cta, fault, code)) siglongjmp(cta.escape, 1);
    sigaction(number, &others[number == SIGBUS], nullptr);  // the fault occurs again, and its handler runs
}
inline void catch_faults(std::vector<Cta> &ctas) {
    struct sigaction action = {};
    action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    running = &ctas;
    sigaction(SIGSEGV, &action, &others[0]), sigaction(SIGBUS, &action, &others[1]);
}
inline void stop_catching_faults() { sigaction(SIGSEGV, &others[0], nullptr), sigaction(SIGBUS, &others[1], nullptr); }
}  // namespace machine
