#pragma once
// Runs KERNEL, defined in the file that includes this one, over a grid.
#include <link.h>
#include <type_traits>
#include <utility>

#include "guard.hpp"

#ifndef SHARED_BYTES
#define SHARED_BYTES 0
#endif

alignas(1024) thread_local char shared[SHARED_BYTES + machine::UNTOUCHED_BYTES];

template <class P> P as_parameter(const void *slot) {  // a slot has 8 bytes
    if constexpr (std::is_pointer_v<P>) return *(P *)slot;
    else if constexpr (std::is_floating_point_v<P>) return (P) * (const double *)slot;
    else return (P) * (const int64_t *)slot;
}
template <class... P, size_t... I>
void call(void (*kernel)(P...), const uint64_t *slots, std::index_sequence<I...>) {
    kernel(as_parameter<P>(slots + I)...);
}
template <class... P> void call(void (*kernel)(P...), const uint64_t *slots) {
    call(kernel, slots, std::index_sequence_for<P...>());
}
template <class... P> constexpr int count_parameters(void (*)(P...)) { return sizeof...(P); }

extern "C" int num_parameters() { return count_parameters(KERNEL); }

namespace machine {
inline pthread_barrier_t ready, over;
inline unsigned seed;

// Fills all `thread_local` memory of this library, which includes static shared memory, with NaN bits.
inline int poison_memory(dl_phdr_info *library, size_t, void *) {
    char *begin = (char *)library->dlpi_tls_data;
    for (int i = 0; begin && i < library->dlpi_phnum; i++) {
        const auto &part = library->dlpi_phdr[i];
        if (part.p_type == PT_TLS && begin <= shared && shared < begin + part.p_memsz)
            memset(begin, 0xFF, part.p_memsz);
    }
    return 0;
}
inline void *go(void *which) {
    Cta &cta = *(Cta *)which;
    char signal_stack[SIGNAL_STACK_BYTES];
    stack_t of_signals = {signal_stack, 0, sizeof signal_stack}, none = {nullptr, SS_DISABLE, 0};
    sigaltstack(&of_signals, nullptr);
    shared[0] = 0;  // allocates this thread's copy
    dl_iterate_phdr(poison_memory, nullptr);
    memset(shared + SHARED_BYTES, UNTOUCHED, UNTOUCHED_BYTES);
    prepare(cta, shared, seed);
    pthread_barrier_wait(&ready);  // no CTA may write to a peer whose memory is not ready
    cta.thread = pthread_self();
    if (!sigsetjmp(cta.escape, 1)) run(cta);
    __atomic_store_n(&cta.is_over, 1, __ATOMIC_RELEASE);
    pthread_barrier_wait(&over);
    check_end(cta, shared + SHARED_BYTES);
    sigaltstack(&none, nullptr);
    return nullptr;
}
inline void run_all(std::vector<Cta> &ctas) {
    pthread_barrier_init(&ready, nullptr, ctas.size()), pthread_barrier_init(&over, nullptr, ctas.size());
    std::vector<pthread_t> threads(ctas.size());
    for (size_t i = 0; i < ctas.size(); i++)
        if (pthread_create(&threads[i], nullptr, go, &ctas[i])) {
            perror("no thread for an emulated CTA");
            abort();
        }
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    pthread_barrier_destroy(&ready), pthread_barrier_destroy(&over);
}
}  // namespace machine

// Returns what went wrong, or an empty string. `area_of` has the area of each tensor in `slots`, and -1 for other
// slots. `late` inputs become valid only when the prior grid has ended, which is as late as possible if the seed is
// odd.
extern "C" const char *launch(const unsigned *grid, unsigned threads, unsigned cluster, const uint64_t *slots,
                              const int *area_of, const machine::Area *areas, unsigned num_areas, unsigned seed,
                              double seconds, const machine::LateInput *late, unsigned num_late) {
    using namespace machine;
    grid_size = {grid[0], grid[1], grid[2]}, cta_size = {threads, 1, 1};
    has_failed = 0, why[0] = 0, prior_grid_state = num_late ? RUNNING : ENDED;
    machine::seed = seed, prior_grid_ends_late = seed % 2, num_running = grid[0] * grid[1] * grid[2];
    std::vector<uint64_t> guarded_slots = guard_tensors(slots, area_of, num_parameters(), areas, num_areas);
    late_inputs.assign(late, late + num_late);
    for (LateInput &input : late_inputs) input.to = find_copy((char *)input.to);
    deadline = seconds_now() + seconds;
    unsigned count = grid[0] * grid[1] * grid[2];
    std::vector<Cta> ctas(count);
    std::vector<Cluster> clusters(count / cluster);
    for (unsigned i = 0; i < count; i++) {
        ctas[i].number = i, ctas[i].rank = i % cluster, ctas[i].cluster = &clusters[i / cluster];
        for (unsigned j = 0; j < cluster; j++) ctas[i].peers.push_back(&ctas[i / cluster * cluster + j]);
    }
    arguments = guarded_slots.data(), body = [](const uint64_t *slots) { call(KERNEL, slots); };
    catch_faults(ctas);
    run_all(ctas);
    stop_catching_faults();
    if (!prior_grid_ended()) fail("ended before the prior grid did");
    free_guarded_tensors();
    return why;
}
