#pragma once
// Logits in an order of whole numbers, with the ids they are of; knows no kernel.
#include "primitives.cuh"

constexpr long long LEAST = (long long)(1ull << 63);  // below every rank

// Larger for a larger logit, then for a lower id: the logit's bits in the order of whole numbers, then ~id.
DEVICE long long rank_of(float logit, u32 id) {
    int bits = __float_as_int(logit);
    return (long long)(bits < 0 ? bits ^ 0x7FFFFFFF : bits) << 32 | (u32)~id;
}
