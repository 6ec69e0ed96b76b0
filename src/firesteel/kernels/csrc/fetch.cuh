#pragma once
// What the next kernel will read, fetched while memory has nothing else to do; knows no layer.
#include "primitives.cuh"

// This program's share, into the L2 cache, while the last rows are multiplied. By the askers.
template <class S> DEVICE void fetch_ahead(const u8 *ahead, long long bytes) {
    constexpr int PART = 4096;
    int parts = (int)(bytes / PART), asker = threadIdx.x - S::CONSUMERS;
    for (int part = blockIdx.x + asker * gridDim.x; part < parts; part += S::ASKERS * 32 * gridDim.x)
        prefetch_bulk(ahead + (u64)part * PART, PART);
}
