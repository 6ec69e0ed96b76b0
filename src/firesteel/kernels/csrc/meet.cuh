#pragma once
// What programs of a kernel do that all run at once; knows no layer.
#include "primitives.cuh"

__device__ u64 arrivals;

// All programs of the kernel meet: what each wrote before, all read afterwards. By a warp of each; every one of them
// runs: there are no more than the GPU holds, and the next kernel's begin only when all have. A counter goes on from
// launch to launch, all of as many programs: another number of them is another module.
DEVICE void meet_grid() {
    __syncwarp();
    dawdle();
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        u64 ticket = atomicAdd(&arrivals, 1ull), all = (ticket / NUM_PROGRAMS + 1) * NUM_PROGRAMS;
        while (read_acquire(&arrivals) < all) {}
    }
    __syncwarp();
}
