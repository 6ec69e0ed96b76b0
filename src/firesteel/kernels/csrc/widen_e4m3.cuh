#pragma once
// Widens E2M1 codes to E4M3, exactly: a row's weights times 2^(6 + 127 - its largest scale). The scale of a group is in
// a table of its eight magnitudes: 0, 0.5, 1, 1.5, 2, 3, 4 and 6 times 2^(6 - below), where `below` is how much smaller
// the exponent of its scale is, 0 to 14. A group of zeros may have any scale: the first entry of all tables is 0.
#include "primitives.cuh"

constexpr int NUM_TABLES = 16, MOST_EXPONENT = 6;

// Code of the E4M3 number units / 512, for units of at most two significant bits.
DEVICE u32 code_of(u32 units) {
    if (units < 8) return units;  // subnormal
    int exponent = (int)(__float_as_uint((float)units) >> 23) - 127;
    return (exponent - 3) * 8 + (units >> (exponent - 3));
}

// By any 16 threads of a CTA at least: `tables` [NUM_TABLES] of eight bytes, of which the last is all zeros.
DEVICE void make_tables(uint2 *tables) {
    constexpr u32 TWICE[] = {0, 1, 2, 3, 4, 6, 8, 12};
    int below = threadIdx.x;
    if (below >= NUM_TABLES) return;
    u32 codes[8];
#pragma unroll
    for (int i = 0; i < 8; i++) codes[i] = below < NUM_TABLES - 1 ? code_of(TWICE[i] << (NUM_TABLES - 2 - below)) : 0;
    tables[below] = uint2{codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24,
                          codes[4] | codes[5] << 8 | codes[6] << 16 | codes[7] << 24};
}
// `row_place` is that of the row's largest scale.
DEVICE u32 table_place(u32 scale_e8m0) { return scale_e8m0 * 8; }
DEVICE uint2 find_table(const uint2 *tables, u32 row_place, u32 scale_e8m0) {
    return *(const uint2 *)((const char *)tables + (row_place - table_place(scale_e8m0) & 8 * (NUM_TABLES - 1)));
}
// The factor that undoes what widening the row did.
DEVICE float row_unit(u32 largest_scale) { return __uint_as_float((largest_scale - MOST_EXPONENT) << 23); }

// Eight codes as eight bytes in their order: prmt looks up four magnitudes at a time, and brings four signs to where
// they belong.
DEVICE void widen_to_e4m3(u32 codes, uint2 table, u32 &first, u32 &second) {
    constexpr u32 SIGNS = 0x80808080u;
    u32 which = codes & 0x77777777u, even = codes << 4;  // signs of even codes are then on top of the bytes
    first = permute_bytes(table.x, table.y, which) | (permute_bytes(even, codes, 0x5140u) & SIGNS);
    second = permute_bytes(table.x, table.y, which >> 16) | (permute_bytes(even, codes, 0x7362u) & SIGNS);
}
