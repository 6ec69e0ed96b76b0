// Rounds rows to E4M3 and copies each to its places, in the order in which moe_wgmma reads it. With COLUMNS == 1 a
// row's largest value becomes 448. With 2, a value is the sum of a high part and of a low part times LOW_UNIT, which is
// exact for bf16 down to 2^-15 of the largest value: the unit is a power of two, and each part has four of bf16's eight
// bits.
#include "moe_low_part.cuh"
#include "swizzle_e4m3.cuh"

constexpr int H = HIDDEN, A = ACTIVE, THREADS = 128, WARPS = THREADS / 32, PARTS = H / 16, STRIDE = 80;
constexpr float LARGEST_E4M3 = 448;

// x is [tokens, H], or the results of the first matmul [num_places, H] if IS_INNER; ids and places [tokens, A]. `out`
// is [H / 64, num_places, COLUMNS, 64], and `units` [num_places] what it is to be multiplied with, NaN for a row that
// is not finite.
extern "C" __global__ void
__launch_bounds__(THREADS) moe_round(const u16 *x, const long long *ids, const int *places, u8 *out, float *units,
                                     int num_places) {
    __shared__ __align__(16) u16 row[H / 64 * STRIDE];  // 64 values and a gap, so that reads use different banks
    __shared__ u32 largest[WARPS];
    u64 token = blockIdx.x;
    launch_dependents();
    wait_for_inputs();
    int place[A];
    bool has_place = false;
#pragma unroll
    for (int rank = 0; rank < A; rank++) {
        place[rank] = ids[token * A + rank] < 0 ? -1 : places[token * A + rank];
        has_place |= place[rank] >= 0;
    }
    if (!has_place) return;
    u64 from = (IS_INNER ? (u64)place[0] : token) * H;
    u32 most = 0;  // bits of the largest magnitude
    for (int eight = threadIdx.x; eight < H / 8; eight += THREADS) {
        uint4 values = *(const uint4 *)(x + from + eight * 8);
        *(uint4 *)(row + eight / 8 * STRIDE + eight % 8 * 8) = values;
        u32 pairs[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
        for (int i = 0; i < 4; i++) most = max(most, max(pairs[i] & 0x7FFFu, pairs[i] >> 16 & 0x7FFFu));
    }
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) most = max(most, largest[warp]);
    bool is_finite = most < 0x7F80;
    most = max(most, (127u - 100) << 7);  // 2^-100: the inverse is finite
    float unit, inverse;
    if (COLUMNS == 1) {
        unit = wide((u16)most) / LARGEST_E4M3, inverse = LARGEST_E4M3 / wide((u16)most);
    } else {  // the largest value becomes 128 to 255
        u32 exponent = most >> 7;
        unit = __uint_as_float((exponent - 7) << 23), inverse = __uint_as_float((261 - exponent) << 23);
    }
    if (!is_finite) unit = __uint_as_float(0x7FC00000u), inverse = 0;
#pragma unroll
    for (int rank = 0; rank < A; rank++)
        if (threadIdx.x == 0 && place[rank] >= 0) units[place[rank]] = unit;
    for (int part = threadIdx.x; part < PARTS; part += THREADS) {
        const u16 *values = row + part / 4 * STRIDE;
        u32 words[COLUMNS][4];
#pragma unroll
        for (int lane = 0; lane < 4; lane++) {
            uint2 four = *(const uint2 *)(values + columns_at(part % 4, lane));
            float scaled[4] = {wide_low(four.x) * inverse, wide_high(four.x) * inverse, wide_low(four.y) * inverse,
                               wide_high(four.y) * inverse};
            words[0][lane] = narrow_e4m3(scaled[0], scaled[1]) | (u32)narrow_e4m3(scaled[2], scaled[3]) << 16;
            if (COLUMNS == 2) {
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    float low, high;
                    wide_e4m3((u16)(words[0][lane] >> 8 * i), low, high);
                    scaled[i] = (scaled[i] - low) / LOW_UNIT, scaled[i + 1] = (scaled[i + 1] - high) / LOW_UNIT;
                }
                words[COLUMNS - 1][lane] =
                    narrow_e4m3(scaled[0], scaled[1]) | (u32)narrow_e4m3(scaled[2], scaled[3]) << 16;
            }
        }
#pragma unroll
        for (int rank = 0; rank < A; rank++) {
            if (place[rank] < 0) continue;
#pragma unroll
            for (int column = 0; column < COLUMNS; column++)
                *(uint4 *)(out + bytes_at(part / 4, place[rank], column, part % 4, num_places, COLUMNS)) =
                    uint4{words[column][0], words[column][1], words[column][2], words[column][3]};
        }
    }
}
