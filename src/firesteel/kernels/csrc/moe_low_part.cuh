#pragma once
// A bf16 value as two E4M3 values: high + low * LOW_UNIT.
#include "primitives.cuh"

constexpr float LOW_UNIT = 1.f / 32;  // high is below 256 and rounded to 16 there: what is left times 32 is below 448
