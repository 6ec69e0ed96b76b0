// One matmul of the experts for some dozens of tokens: every chosen expert's rows are streamed once, and meet the few
// tokens that want it. IS_UP: gate and up, SwiGLU; else down, weighted.
#include "moe_group.cuh"
#include "multiply_fp4.cuh"
#include "share.cuh"

extern __shared__ __align__(128) char shared[];
using S = Stream<true, NUM_COLUMNS, 1, NUM_WARPS, NUM_STAGES, WIDEST>;
constexpr int STRIPS = NUM_ROWS / 16, THREADS = 32 * (S::STORER + NUM_STORERS);
constexpr int HELD_BYTES = S::WARPS * WIDEST * S::BYTES_EACH, UNIT_BYTES = S::WARPS * WIDEST * 4;
static_assert(total(Ring<S>::BYTES, HELD_BYTES, UNIT_BYTES, sizeof(Groups), sizeof(Bounds)) == SHARED_BYTES,
              "as launched");

struct Experts {
    const Groups *groups;
    const u8 *codes, *scales;
    const u16 *bias;
    __device__ __forceinline__ Rows rows(int strip) const {
        u64 row = (u64)groups->expert[strip / STRIPS] * NUM_ROWS;
        return Rows{codes + row * S::ROW_BYTES, scales + row * S::SCALE_ROW, strip % STRIPS * 16, 8, bias + row};
    }
};

// Calls CALL with WIDTH: as many tokens as want a place's expert, rounded up.
#define WITH_WIDTH(wanted, CALL)                                                                                       \
    if ((wanted) == 1) {                                                                                               \
        constexpr int WIDTH = 1;                                                                                       \
        CALL;                                                                                                          \
    } else if ((wanted) == 2) {                                                                                        \
        constexpr int WIDTH = 2;                                                                                       \
        CALL;                                                                                                          \
    } else if (WIDEST == 4 || (wanted) <= 4) {                                                                         \
        constexpr int WIDTH = 4;                                                                                       \
        CALL;                                                                                                          \
    } else {                                                                                                           \
        constexpr int WIDTH = WIDEST;                                                                                  \
        CALL;                                                                                                          \
    }
template <int WIDTH> using Narrow = Stream<true, NUM_COLUMNS, 1, NUM_WARPS, NUM_STAGES, WIDTH>;

// By a multiplying warp: the strips `number` to `end`, all of a place. `bytes` and `units` hold WIDEST rows of it.
template <int WIDTH>
DEVICE void multiply_place(Ring<S> &ring, int number, int end, const int *pair, int wanted, const u16 *x,
                           const float *weights, char *bytes, float *units) {
    using N = Narrow<WIDTH>;
    Pairs<S> rows[WIDTH];
    auto pair_of = [&](int i) { return pair[min(i, wanted - 1)]; };
#pragma unroll
    for (int i = 0; i < WIDTH; i++) rows[i].read((const char *)(x + (u64)(pair_of(i) / (IS_UP ? A : 1)) * NUM_COLUMNS));
    __syncwarp();  // all lanes have taken what was held
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        float unit = split_bytes<S>(rows[i], bytes + i * S::BYTES_EACH);
        if (threadIdx.x % 32 == 0) units[i] = IS_UP ? unit : unit * weights[pair_of(i)];
    }
    __syncwarp();
    Fragments<N> own;
#pragma unroll
    for (int set = 0; set < N::SETS; set++) {
        load_bytes<N>(set, [&](int i) { return bytes + i * S::BYTES_EACH; }, own.b[set], own.minus[set]);
        own.unit[set] = units[token_of<N>(set)];
    }
    for (; number < end; number++) {
        float c[N::SETS][2];
        multiply_fp4<N>(ring, number, own, c);
        write_sums_fp4<N>(ring, number, c);
        ring.arrive(ring.done, number);
    }
}

// By a finishing warp, of as many as there are: its strips of those from `number` to `end`, all of a place.
template <int WIDTH>
DEVICE void store_place(Ring<S> &ring, int number, int end, int strip, const int *pair, int wanted,
                        const float *weights, void *out, float limit) {
    using N = Narrow<WIDTH>;
    int lane = threadIdx.x % 32, mine[N::VALUES];
    float weight[N::VALUES];
#pragma unroll
    for (int i = 0; i < N::VALUES; i++) {
        int which = (32 * i + lane) % WIDTH;
        mine[i] = pair[min(which, wanted - 1)];
        weight[i] = IS_UP ? 1.f : weights[mine[i]];
        if (which >= wanted || 32 * i + lane >= N::COUNT) mine[i] = -1;
    }
    for (; number < end; number += NUM_STORERS, strip += NUM_STORERS) {
        float sum[S::VALUES], added[N::VALUES];
        const u16 *bias = ring.bias(number);
#pragma unroll
        for (int i = 0; i < N::VALUES; i++) added[i] = wide(bias[(32 * i + lane) / WIDTH % 16]) * weight[i];
        ring.wait(ring.done, number);
        ring.add_up(number, sum, N::COUNT);
        ring.arrive(ring.free, number);
        random_delay();
#pragma unroll
        for (int i = 0; i < N::VALUES; i++) {
            int row = (32 * i + lane) / WIDTH;
            float y = sum[i] + added[i];
            if (IS_UP) {
                y = swiglu(y, __shfl_xor_sync(~0u, y, WIDTH), limit);  // with the next row
                if (mine[i] >= 0 && row % 2 == 0)
                    ((u16 *)out)[(u64)mine[i] * (NUM_ROWS / 2) + strip * 8 + row / 2] = narrow(y);
            } else if (mine[i] >= 0) ((float *)out)[(u64)mine[i] * NUM_ROWS + strip * 16 + row] = y;
        }
    }
}

// x is [tokens, NUM_COLUMNS] where IS_UP, then `out` [pairs, NUM_ROWS / 2] bf16; else [pairs, NUM_COLUMNS], `out`
// [pairs, NUM_ROWS] fp32. ids and weights are [pairs].
extern "C" __global__ void
__launch_bounds__(THREADS, 1)
moe_stream(const u16 *x, const long long *ids, const float *weights, const u8 *codes, const u8 *scales,
           const u16 *bias, void *out, float limit, int num_pairs) {
    Arena arena{shared};
    Ring<S> ring(arena);
    char *held = arena.take(HELD_BYTES);
    float *units = (float *)arena.take(UNIT_BYTES);
    Groups *groups = (Groups *)arena.take(sizeof(Groups));
    Bounds *bounds = (Bounds *)arena.take(sizeof(Bounds));
    Experts experts{groups, codes, scales, bias};
    ring.start();
    int warp = threadIdx.x / 32;
    bool is_loader = warp >= S::WARPS && warp < S::STORER;
    if (IS_UP || !is_loader) wait_for_inputs();  // down's ids and weights were final when up began
    if (warp == S::WARPS) {
        group(ids, num_pairs, groups);
        *bounds = partition_by_cost<STRIPS, MOST_PLACES>(groups->count, [&](int place) { return groups->wanted(place); });
    }
    named_barrier_sync(2, THREADS);
    Share<STRIPS> share(*bounds);
    if (is_loader) {
        load_all<S>(ring, share, [&](const Piece &piece) { return experts.rows(piece.strip); });
        return;
    }
    launch_dependents();
    if (warp < S::WARPS) {
        char *bytes = held + warp * WIDEST * S::BYTES_EACH;
        for (int number = 0; number < share.total;) {
            int place = share.place(number), end = share.end(place), wanted = groups->wanted(place);
            const int *pair = groups->pair + groups->first[place];
            WITH_WIDTH(wanted, (multiply_place<WIDTH>(ring, number, end, pair, wanted, x, weights, bytes,
                                                      units + warp * WIDEST)))
            number = end;
        }
        return;
    }
    for (int number = warp - S::STORER; number < share.total;) {
        int place = share.place(number), end = share.end(place), wanted = groups->wanted(place);
        const int *pair = groups->pair + groups->first[place];
        WITH_WIDTH(wanted, (store_place<WIDTH>(ring, number, end, share.strip(number), pair, wanted,
                                                weights, out, limit)))
        number += (end - number + NUM_STORERS - 1) / NUM_STORERS * NUM_STORERS;
    }
}
