// fc1 and fc2 in one kernel for two to eight tokens: the strips of both matmuls are partitioned by cost, consecutive
// strips per CTA. A second grid barrier precedes the sum over a token's experts.
#include "experts.cuh"
#include "grid_barrier.cuh"
#include "prefetch.cuh"
#include "share.cuh"

extern __shared__ __align__(128) char shared[];
using S = Stream<true, H, 1, NUM_WARPS, NUM_STAGES, TOKENS>;
constexpr int UNIT_BYTES = S::WARPS * TOKENS * 4;
struct Parts {
    Bounds up, down;
};
static_assert(H == I && TOKENS > 1, "rows of the same length, several tokens");
static_assert(total(Ring<S>::BYTES, S::X_BYTES, UNIT_BYTES, sizeof(Chosen), sizeof(Parts)) == SHARED_BYTES,
              "as launched");
constexpr int UP_STRIPS = 2 * I / 16, DOWN_STRIPS = H / 16;
using UpShare = Share<UP_STRIPS>;
using DownShare = Share<DOWN_STRIPS>;

// fc1's pieces, then fc2's.
struct Both {
    UpShare up;
    DownShare down;
    int total;
    __device__ __forceinline__ Both(const Parts &parts)
        : up(parts.up), down(parts.down), total(up.total + down.total) {}
};
DEVICE int pair_of(const Chosen *chosen, int place, int i) {
    return chosen->token[place][i] * A + chosen->slot[place][i];
}

// Called by a consumer warp. `bytes` [NUM_HELD][X_STRIDE] holds its columns, of x for fc1 and of `inner` for fc2.
template <int WIDTH>
DEVICE void multiply_place(Ring<S> &ring, int number, int end, const Chosen *chosen, int place, const char *bytes,
                           const float *units, bool is_up) {
    using N = Narrow<S, WIDTH>;
    Fragments<N> own;
    auto at = [&](int i) { return is_up && !IN_TURNS ? chosen->token[place][i] : i; };
    load_wanted<N>(
        chosen, place, [&](int i) { return bytes + at(i) * S::X_STRIDE; }, [&](int i) { return units[at(i)]; }, own);
    for (; number < end; number++) {
        float c[N::SETS][2];
        multiply_fp4<N>(ring, number, own, c);
        write_sums_fp4<N>(ring, number, c);
        ring.arrive(ring.done, number);
    }
}
DEVICE void hold_place(const Chosen *chosen, int place, const u16 *inner, char *bytes, float *units) {
    __syncwarp();  // all lanes have loaded the previous rows
    for (int i = 0; i < chosen->wanted[place]; i++) {
        Pairs<S> row;
        row.read((const char *)(inner + (u64)pair_of(chosen, place, i) * I));
        float unit = split_bytes<S>(row, bytes + i * S::X_STRIDE);
        float weight = chosen->weight[chosen->token[place][i]][chosen->slot[place][i]];
        if (threadIdx.x % 32 == 0) units[i] = unit * weight;
    }
    __syncwarp();
}
template <bool IS_UP, class Part>
DEVICE void multiply_share(Ring<S> &ring, int before, const Part &share, const Chosen *chosen, const u16 *inner,
                           char *bytes, float *units, const Normed<S> *normed = nullptr) {
    for (int number = 0; number < share.total;) {
        int place = share.place(number), end = share.end(place);
        if (!IS_UP) hold_place(chosen, place, inner, bytes, units);
        else if (IN_TURNS) normed->hold(chosen, place, bytes, units);
        WITH_WIDTH(width_of(chosen, place),
                   (multiply_place<WIDTH>(ring, before + number, before + end, chosen, place, bytes, units, IS_UP)))
        number = end;
    }
}

// Called by the storer: stores pieces `number` to `end` of the ring, all of one place; `strip` is the first strip.
template <bool IS_UP, int WIDTH>
DEVICE void store_place(Ring<S> &ring, int number, int end, int strip, const Chosen *chosen, int place, u16 *inner,
                        float *parts, float limit) {
    using N = Narrow<S, WIDTH>;
    int lane = threadIdx.x % 32, pair[N::VALUES];
    float weight[N::VALUES];
#pragma unroll
    for (int i = 0; i < N::VALUES; i++) {
        int at = 32 * i + lane, which = min(at % WIDTH, chosen->wanted[place] - 1);
        pair[i] = at < N::COUNT && which == at % WIDTH ? pair_of(chosen, place, which) : -1;
        weight[i] = chosen->weight[chosen->token[place][which]][chosen->slot[place][which]];
    }
    for (; number < end; number++, strip++) {
        float sum[S::VALUES], added[N::VALUES];
        const u16 *bias = ring.bias(number);
#pragma unroll
        for (int i = 0; i < N::VALUES; i++) added[i] = wide(bias[(32 * i + lane) / WIDTH % 16]);
        ring.wait(ring.done, number);
        ring.add_up(number, sum, N::COUNT);
        ring.arrive(ring.free, number);
        random_delay();
#pragma unroll
        for (int i = 0; i < N::VALUES; i++) {
            int row = (32 * i + lane) / WIDTH;
            if (IS_UP) {
                float y = sum[i] + added[i];
                y = swiglu(y, __shfl_xor_sync(~0u, y, WIDTH), limit);  // gate, and up from the next row
                if (pair[i] >= 0 && row % 2 == 0) inner[(u64)pair[i] * I + strip * 8 + row / 2] = narrow(y);
            } else if (pair[i] >= 0) parts[(u64)pair[i] * H + strip * 16 + row] = sum[i] + added[i] * weight[i];
        }
    }
}
template <bool IS_UP, class Part>
DEVICE void store_share(Ring<S> &ring, int before, const Part &share, const Chosen *chosen, u16 *inner, float *parts,
                        float limit) {
    for (int number = 0; number < share.total;) {
        int place = share.place(number), end = share.end(place);
        WITH_WIDTH(width_of(chosen, place),
                   (store_place<IS_UP, WIDTH>(ring, before + number, before + end, share.strip(number), chosen, place,
                                              inner, parts, limit)))
        number = end;
    }
}

// Called by all consumers: adds the experts' sums to this CTA's part of the residual.
DEVICE void add_parts(u16 *r, const float *parts, int num_tokens) {
    for (int at = blockIdx.x * S::CONSUMERS + threadIdx.x; at < num_tokens * H; at += gridDim.x * S::CONSUMERS) {
        int token = at / H, column = at % H;
        float sum = 0;
#pragma unroll
        for (int rank = 0; rank < A; rank++) sum += parts[((u64)token * A + rank) * H + column];
        r[at] = narrow(wide(r[at]) + round_bf16(sum));
    }
}

// Parameters as decode_experts; `parts` is [num_tokens, ACTIVE, HIDDEN] fp32.
extern "C" __global__ void
__launch_bounds__(S::THREADS, CTAS_PER_SM)
decode_experts_even(u16 *r, const u16 *norm, const float *logits, const u8 *up_codes, const u8 *up_scales,
                    const u16 *up_bias, const u8 *down_codes, const u8 *down_scales, const u16 *down_bias, u16 *inner,
                    float *parts, const u8 *ahead, long long ahead_bytes, float eps, float limit, int num_tokens) {
    Arena arena{shared};
    Ring<S> ring(arena);
    char *x = arena.take(S::X_BYTES);
    float *units = (float *)arena.take(UNIT_BYTES);
    Chosen *chosen = (Chosen *)arena.take(sizeof(Chosen));
    Parts *shares = (Parts *)arena.take(sizeof(Parts));
    auto rows = [&](const u8 *codes, const u8 *scales, const u16 *bias, int place, int strip, int all) {
        u64 row = (u64)chosen->expert[place] * all;
        return Rows{codes + row * S::ROW_BYTES, scales + row * S::SCALE_ROW, strip * 16, 8, bias + row};
    };
    launch_dependents();
    ring.start();
    int warp = threadIdx.x / 32;
    if (IN_TURNS && warp < S::WARPS) {
        Normed<S> normed(r, norm);
        wait_for_inputs();
        normed.start(eps, units, num_tokens);
        char *bytes = x + warp * S::BYTES_EACH;
        units += warp * TOKENS;
        named_barrier_sync(2, S::THREADS);
        multiply_share<true>(ring, 0, UpShare(shares->up), chosen, inner, bytes, units, &normed);
        named_barrier_sync(4, S::CONSUMERS + 32);
        multiply_share<false>(ring, UpShare(shares->up).total, DownShare(shares->down), chosen, inner, bytes, units);
        named_barrier_sync(4, S::CONSUMERS + 32);
        add_parts(r, parts, num_tokens);
        return;
    }
    if (warp < S::WARPS) {
        NormWeights<H, S::CONSUMERS> weights(norm);
        wait_for_inputs();
        normalise<H, S::CONSUMERS, TOKENS, S::X_STRIDE>(r, weights, eps, x, units, num_tokens);
        char *bytes = x + warp * S::BYTES_EACH;
        units += warp * TOKENS;
        for (int token = 0; token < TOKENS; token++) {
            float unit = split_bytes<S>(x + token * S::X_STRIDE, bytes + token * S::X_STRIDE);
            if (threadIdx.x % 32 == 0) units[token] = unit;
        }
        named_barrier_sync(2, S::THREADS);
        multiply_share<true>(ring, 0, UpShare(shares->up), chosen, inner, bytes, units);
        named_barrier_sync(4, S::CONSUMERS + 32);
        multiply_share<false>(ring, UpShare(shares->up).total, DownShare(shares->down), chosen, inner, bytes, units);
        named_barrier_sync(4, S::CONSUMERS + 32);
        add_parts(r, parts, num_tokens);
        return;
    }
    if (warp < S::STORER) {
        wait_for_inputs();
        choose_once<S, false>(logits, num_tokens, chosen);
        auto wanted = [&](int place) { return chosen->wanted[place]; };
        Parts own = {partition_by_cost<UP_STRIPS, TOKENS * A>(chosen->count, wanted),
                     partition_by_cost<DOWN_STRIPS, TOKENS * A>(chosen->count, wanted)};
        if (threadIdx.x == S::CONSUMERS) *shares = own;
        __syncwarp();
        named_barrier_arrive(2, S::THREADS);
        Both both(own);
        for (int number = 0; number < both.total; number++) {
            bool is_up = number < both.up.total;
            int own = is_up ? number : number - both.up.total;
            if (FLIGHT < S::STAGES && number >= FLIGHT) ring.wait(ring.full, number - FLIGHT);
            if (number >= S::STAGES) ring.wait(ring.free, number - S::STAGES);
            ring.load(number, is_up ? rows(up_codes, up_scales, up_bias, both.up.place(own), both.up.strip(own), 2 * I)
                                   : rows(down_codes, down_scales, down_bias, both.down.place(own),
                                          both.down.strip(own), H), 0);
        }
        prefetch_next_weights<S>(ahead, ahead_bytes);
        return;
    }
    wait_for_inputs();
    named_barrier_sync(2, S::THREADS);
    choose<false, true>(logits, num_tokens, chosen);
    store_share<true>(ring, 0, UpShare(shares->up), chosen, inner, parts, limit);
    grid_barrier();
    named_barrier_arrive(4, S::CONSUMERS + 32);
    store_share<false>(ring, UpShare(shares->up).total, DownShare(shares->down), chosen, inner, parts, limit);
    grid_barrier();
    named_barrier_arrive(4, S::CONSUMERS + 32);
}
