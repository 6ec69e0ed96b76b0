#pragma once
// Order-preserving integer keys of (logit, token id) pairs, for argmax with max().
#include "primitives.cuh"

constexpr long long LEAST = (long long)(1ull << 63);  // less than every key

// Larger for a larger logit, and for a lower id if logits are equal: order-preserving bits of the logit, then ~id.
DEVICE long long rank_of(float logit, u32 id) {
    int bits = __float_as_int(logit);
    return (long long)(bits < 0 ? bits ^ 0x7FFFFFFF : bits) << 32 | (u32)~id;
}
