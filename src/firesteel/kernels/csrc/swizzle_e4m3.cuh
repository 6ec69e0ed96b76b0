#pragma once
// Order of activations that moe_wgmma reads in E4M3: [K / 64, places, E4M3_COLUMNS, 64]. A lane of a quad widens 16
// consecutive codes; so of 64 values, part p of 16 bytes is four values of each lane, 16 lane + 4 p and following.
// Parts are swizzled by the column of the product, as wgmma reads them.
#include "primitives.cuh"

// The first of the four columns, of 64, that word `lane` of a part holds.
DEVICE int columns_at(int part, int lane) { return 16 * lane + 4 * part; }
// Index of a part's first byte.
DEVICE u64 bytes_at(int step, int place, int column, int part, int num_places, int per_place) {
    int row = place * per_place + column;
    return ((u64)step * num_places * per_place + row) * 64 + (part ^ row / 2 % 4) * 16;
}
