#pragma once
// Runs KERNEL, of the file before this one, over a grid.
#include <barrier>
#include <utility>

#ifndef SHARED_BYTES
#define SHARED_BYTES 0
#endif

alignas(128) thread_local char shared[SHARED_BYTES + 128];

template <class P> P as_parameter(const void *slot) {  // of eight bytes
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

// What went wrong, or an empty text.
extern "C" const char *launch(const unsigned *grid, unsigned threads, unsigned cluster, const uint64_t *slots,
                              unsigned seed, double seconds) {
    using namespace machine;
    grid_size = {grid[0], grid[1], grid[2]}, program_size = {threads, 1, 1};
    failed = false, why.clear();
    deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds((int)(1000 * seconds));
    unsigned count = grid[0] * grid[1] * grid[2];
    std::vector<Program> programs(count);
    std::vector<Cluster> clusters(count / cluster);
    for (unsigned i = 0; i < count; i++) {
        programs[i].number = i, programs[i].rank = i % cluster, programs[i].cluster = &clusters[i / cluster];
        for (unsigned j = 0; j < cluster; j++) programs[i].peers.push_back(&programs[i / cluster * cluster + j]);
    }
    std::function<void()> all = [&] { call(KERNEL, slots); };
    body = &all;
    std::barrier ready((int)count), over((int)count);
    auto go = [&](Program &program) {
        memset(shared, 0xFF, SHARED_BYTES);
        memset(shared + SHARED_BYTES, 0x5A, 128);
        prepare(program, shared, seed);
        ready.arrive_and_wait();  // memory of all is there before one writes to another's
        machine::run(program);
        for (int i = 0; i < 128; i++)
            if (shared[SHARED_BYTES + i] != 0x5A) fail("wrote behind the shared memory");
        over.arrive_and_wait();
    };
    std::vector<std::thread> all_programs;
    for (Program &program : programs) all_programs.emplace_back(go, std::ref(program));
    for (std::thread &one : all_programs) one.join();
    return why.c_str();
}
