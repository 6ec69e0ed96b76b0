// Widens words of E2M1 codes to E4M3. `codes` is [gridDim.x][16]; `scales` and `largest` are those of the rows and
// their groups; `results` is [gridDim.x][16][2].
#include "widen_e4m3.cuh"

extern "C" __global__ void widening(const u32 *codes, const u8 *scales, const u8 *largest, u32 *results) {
    __shared__ __align__(16) uint2 tables[NUM_TABLES];
    make_tables(tables);
    __syncthreads();
    int at = blockIdx.x * 16 + threadIdx.x;
    if (threadIdx.x >= 16) return;
    uint2 table = find_table(tables, table_place(largest[at]), scales[at]);
    widen_to_e4m3(codes[at], table, results[2 * at], results[2 * at + 1]);
}
