#pragma once
// What programs of a kernel do that all run at once; knows no layer.
#include "primitives.cuh"

__device__ u64 arrivals;

// All programs of the kernel meet: what each wrote before, all read afterwards. By a warp of each; every one of them
// runs: there are no more than the GPU holds, and the next kernel's begin only when all have. A counter goes on from
// launch to launch, all of as many programs: another number of them is another module.
DEVICE void meet_grid(u64 *counter = &arrivals) {
    __syncwarp();
    dawdle();
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        u64 ticket = atomicAdd(counter, 1ull), all = (ticket / NUM_PROGRAMS + 1) * NUM_PROGRAMS;
        while (read_acquire(counter) < all) {}
    }
    __syncwarp();
}

// This program's share of what the next kernel will read, into the L2 cache: memory has nothing else to do while the
// last rows are multiplied. By the askers.
template <class S> DEVICE void fetch_ahead(const u8 *ahead, long long bytes) {
    constexpr int PART = 4096;
    int parts = (int)(bytes / PART), asker = threadIdx.x - S::CONSUMERS;
    for (int part = blockIdx.x + asker * gridDim.x; part < parts; part += S::ASKERS * 32 * gridDim.x)
        prefetch_bulk(ahead + (u64)part * PART, PART);
}
