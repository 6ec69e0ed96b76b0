#pragma once
// Prefetches weights of the next kernel into L2 while memory would be idle.
#include "primitives.cuh"

// Prefetches this CTA's share of `ahead`. Called by the loaders while consumers multiply the last rows.
template <class S> DEVICE void prefetch_next_weights(const u8 *ahead, long long bytes) {
    constexpr int PART = 4096;
    int parts = (int)(bytes / PART), loader = threadIdx.x - S::CONSUMERS;
    for (int part = blockIdx.x + loader * gridDim.x; part < parts; part += S::LOADERS * 32 * gridDim.x)
        prefetch_bulk(ahead + (u64)part * PART, PART);
}
