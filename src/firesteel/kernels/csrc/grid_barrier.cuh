#pragma once
// Grid-wide barrier for co-resident CTAs.
#include "primitives.cuh"

__device__ u64 arrivals;

// Waits until every CTA of the kernel has arrived; writes before the barrier are visible after it. Called by one warp
// per CTA. All CTAs must be resident: the grid is no larger than the GPU holds, and the next kernel's CTAs start only
// after all of this one's have started. The counter is never reset, so every launch of a module has the same number of
// CTAs (another number is another module).
DEVICE void grid_barrier() {
    __syncwarp();
    random_delay();
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        u64 ticket = atomicAdd(&arrivals, 1ull), all = (ticket / NUM_CTAS + 1) * NUM_CTAS;
        while (read_acquire(&arrivals) < all) {
        }
    }
    __syncwarp();
}
