#pragma once
// Order of activations that moe_wgmma reads: [K / 64, places, 64]. Of the 64 values of a place, a lane of a quad widens
// 16 consecutive codes, so value 16 lane + i meets the weights of that lane: the columns of wgmma's operands are
// permuted alike. Eight values, 16 bytes, are a part; parts are swizzled by the place, as wgmma reads them.
#include "primitives.cuh"

// The column, of 64, that is value `i` of a part.
DEVICE int column_at(int part, int i) { return 16 * (i / 2) + 8 * (part / 4) + part % 4 + 4 * (i % 2); }
// Index of a part's first value.
DEVICE u64 part_at(int step, int place, int part, int num_places) {
    return ((u64)step * num_places + place) * 64 + (part ^ place % 8) * 8;
}
