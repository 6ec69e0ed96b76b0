#pragma once
// Sizes of the experts, and what their matmuls read beside the weights; knows neither of them.
#include "choose.cuh"
#include "multiply.cuh"
#include "normalise.cuh"

constexpr int H = HIDDEN, I = INTERMEDIATE;
struct Early {
    float added[(16 * TOKENS + 31) / 32], old[(16 * TOKENS + 31) / 32];
};
