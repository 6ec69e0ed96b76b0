// One matmul of the experts for many tokens. IS_UP: gate and up, SwiGLU; else down, weighted.
//
// A tile is a strip of an expert's rows and up to WIDEST of its tokens; CTAs take tiles in turn. Consumer warpgroups
// widen the weights, BLOCKS times 64 rows each, to bf16, or with E4M3_COLUMNS to E4M3, and multiply them.
#if E4M3_COLUMNS
#include "moe_tile_e4m3.cuh"
#else
#include "moe_tile_bf16.cuh"
#endif

__device__ constexpr int index_of(int width) {
    int index = 0;
    while (ALL_WIDTHS[index] != width) index++;
    return index;
}
// By a consumer warpgroup: this CTA's tiles of a width. Each width has its own loop: in a common one, the sums of all
// widths would compete for registers.
template <int N> DEVICE void multiply_width(Buffers &buffers, Turn &turn, int &taken, const Output &to) {
    constexpr int WIDTH = index_of(N);
    for (; (int)(blockIdx.x + taken * gridDim.x) < buffers.tiles->ends[WIDTH]; taken++)
        multiply_tile<N * PER_TOKEN>(buffers, turn, taken, to);
}
template <int... N> struct Widths {
    __device__ __forceinline__ static void multiply(Buffers &buffers, Turn &turn, const Output &to) {
        int taken = 0;
        (multiply_width<N>(buffers, turn, taken, to), ...);
    }
};

// x is [K / 64, num_places, 64], in E4M3 [K / 64, num_places, E4M3_COLUMNS, 64] times the `units` of places; `starts`,
// `counts`, `order` and `weights` as moe_place writes them. `bases` are the rows' largest scales. `out` is x of the
// next matmul (after E4M3 [num_places, NUM_ROWS / 2] bf16), or [pairs, NUM_ROWS] bf16.
extern "C" __global__ void
__launch_bounds__(THREADS, 1)
moe_wgmma(const u8 *x, const int *starts, const int *counts, const int *order, const float *weights, const u8 *codes,
          const u8 *scales, const u16 *bias, void *out, float limit, int num_places
#if E4M3_COLUMNS
          ,
          const u8 *bases, const float *units
#endif
) {
    Buffers buffers;
    buffers.start();
    // down's list of tiles, and what it reads beside tokens, were final when up began
    if (IS_UP) wait_for_inputs();
    launch_dependents();
    if (threadIdx.x / 32 == 0) buffers.tiles->list(starts, counts);
#if E4M3_COLUMNS
    make_tables(buffers.tables);
    Inputs inputs{x, weights, order, codes, scales, bias, num_places, bases, units};
#else
    Inputs inputs{x, weights, order, codes, scales, bias, num_places};
#endif
    __syncthreads();
    if (threadIdx.x / 32 >= CONSUMERS) {
        lower_registers<FEW_REGISTERS>();
        load_all(buffers, inputs);
        wait_for_inputs();
        return;
    }
    raise_registers<MANY_REGISTERS>();
    Turn turn;
    Widths<WIDTHS>::multiply(buffers, turn, Output{out, limit, num_places});
    wait_for_inputs();
}
