// fc1 and fc2 in one kernel for one token: fc2's weights follow fc1's through the same ring. There is no grid barrier:
// each value of fc1 is published to the other CTAs by itself, while they work on other experts.
#include "experts_down.cuh"
#include "experts_up.cuh"
#include "multiply_split_signs.cuh"
#include "prefetch.cuh"

extern __shared__ __align__(128) char shared[];
using S = Stream<true, H, 1, NUM_WARPS, NUM_STAGES, TOKENS>;
constexpr int CUT_BYTES = S::WARPS * S::BYTES_EACH, SCRATCH_BYTES = S::WARPS * 4,
              SUM_BYTES = MOST_STRIPS * S::COUNT * 4;
static_assert(TOKENS == 1 && H == I, "one token, rows of the same length");
static_assert(!IS_PAIRED || A > 1, "both CTAs of a pair need experts for a strip that they share");

// A published value of fc1 is the high half of a word; the low half is the launch number. A reader can therefore tell
// whether the value belongs to this launch, and needs no other synchronisation.
__device__ __align__(8) u32 published[A * I];
__device__ u32 launches[NUM_CTAS];  // launches that each CTA has completed
struct Passed {
    u32 launch;
    __device__ __forceinline__ Passed() : launch(launches[blockIdx.x] + 1 & 0xFFFF) {}
};
DEVICE void put(const Passed &now, u64 at, float y) { write_word(published + at, (u32)narrow(y) << 16 | now.launch); }

// This warp's columns of an expert's row of fc1 outputs, loaded ahead of use and re-read until they are current.
struct Incoming {
    uint2 words[S::OWN];
    __device__ __forceinline__ void load(int place, int i) {
        words[i] = read_words(published + place * I + threadIdx.x / 32 * S::OWN * 64 + 64 * i + 2 * (threadIdx.x % 32));
    }
    __device__ __forceinline__ void load(int place) {
#pragma unroll
        for (int i = 0; i < S::OWN; i++) load(place, i);
    }
    __device__ __forceinline__ Pairs<S> take(int place, const Passed &now) {
        Pairs<S> pairs;
#pragma unroll
        for (int i = 0; i < S::OWN; i++) {
            while ((words[i].x & 0xFFFF) != now.launch || (words[i].y & 0xFFFF) != now.launch) load(place, i);
            pairs.of[i] = permute_bytes(words[i].x, words[i].y, 0x7632);
        }
        return pairs;
    }
};

// A CTA's pieces: fc1's, then fc2's, expert by expert.
struct PassedWork {
    Work<S> up;
    DownWork<IS_PAIRED, true> down;
    int total;
    __device__ __forceinline__ PassedWork() : up(A * Up<S>::STRIPS), down(Down<S>::STRIPS, A) {
        total = up.total + down.total;
    }
};

// Written by the storer for the consumers, once the experts are known.
constexpr int UP = -1, END = -2;
struct Plan {
    u64 made, held;  // barriers: the plan is written; a warp has read all published values it needs
    float weight[A];
    signed char place[MOST_STRIPS * A + 1];  // expert index of each of fc2's pieces; END after the last
};
static_assert(total(Ring<S>::BYTES, S::X_BYTES, CUT_BYTES, SCRATCH_BYTES, SUM_BYTES, sizeof(Chosen), sizeof(Plan)) ==
                  SHARED_BYTES,
              "as launched");

// Called by a whole warp.
DEVICE void write_plan(const PassedWork &work, const Chosen *chosen, Plan *plan) {
    int lane = threadIdx.x % 32;
    for (int i = lane; i <= work.down.total; i += 32)
        plan->place[i] = i < work.down.total ? work.down.at(i).place : END;
    if (lane < A) plan->weight[lane] = chosen->weight[0][lane];
    __syncwarp();
    if (lane < ARRIVING) barrier_arrive(&plan->made);
}

// The consumers' main loop; the first `up` pieces are fc1's. x is quantised in place, an expert's row into `bytes`.
DEVICE void multiply_passed(Ring<S> &ring, int up, Plan *plan, char *x, char *bytes) {
    int mine = threadIdx.x / 32 * S::BYTES_EACH;
    bytes += mine;
    Passed now;
    Incoming incoming;
    SplitSigns<S> own;
    float x_unit = split_bytes<S>(x, x + mine);
    __syncwarp();
    own.take(x + mine, x_unit);
    auto place_of = [&](int number) {
        if (number < up) return UP;
        barrier_wait(&plan->made, 0);
        return (int)plan->place[number - up];
    };
    int place = UP, next = place_of(0);
    if (next >= 0) incoming.load(next);
#pragma unroll 1
    for (int number = 0; next != END; number++) {
        if (next != place) {
            place = next;
            Pairs<S> pairs = incoming.take(place, now);
            __syncwarp();  // all lanes have loaded the previous row
            float unit = split_bytes<S>(pairs, bytes);
            __syncwarp();
            own.take(bytes, unit * plan->weight[place]);
        }
        next = place_of(number + 1);
        if (next >= 0 && next != place) incoming.load(next);
        if (next == END && threadIdx.x % 32 < ARRIVING) barrier_arrive(&plan->held);
        own.multiply(ring, number);
    }
}

extern "C" __global__ void
__launch_bounds__(S::THREADS, CTAS_PER_SM)
decode_experts_passed(u16 *r, const u16 *norm, const float *logits, const u8 *up_codes, const u8 *up_scales,
                      const u16 *up_bias, const u8 *down_codes, const u8 *down_scales, const u16 *down_bias,
                      const u8 *ahead, long long ahead_bytes, float eps, float limit) {
    Arena arena{shared};
    Ring<S> ring(arena);
    char *x = arena.take(S::X_BYTES), *cut_bytes = arena.take(CUT_BYTES);
    float *scratch = (float *)arena.take(SCRATCH_BYTES), *sums = (float *)arena.take(SUM_BYTES);
    Chosen *chosen = (Chosen *)arena.take(sizeof(Chosen));
    Plan *plan = (Plan *)arena.take(sizeof(Plan));
    launch_dependents();
    if (threadIdx.x == 0) barrier_init(&plan->made, ARRIVING), barrier_init(&plan->held, S::WARPS * ARRIVING);
    ring.start(IS_PAIRED);
    PassedWork work;
    if (threadIdx.x < S::CONSUMERS) {
        NormWeights<H, S::CONSUMERS> weights(norm);
        wait_for_inputs();
        normalise<H, S::CONSUMERS, TOKENS, S::X_STRIDE>(r, weights, eps, x, scratch, 1);
        multiply_passed(ring, work.up.total, plan, x, cut_bytes);
        return;
    }
    wait_for_inputs();
    Up<S, Passed> up{chosen, up_codes, up_scales, up_bias, Passed(), limit};
    Down<S> down{chosen, down_codes, down_scales, down_bias, r, 1};
    if (threadIdx.x / 32 < S::STORER) {
        choose_once<S, false>(logits, 1, chosen);
        named_barrier_arrive(2, S::THREADS - S::CONSUMERS);
        for (int number = 0; number < work.total; number++) {
            if (number < work.up.total) load_next<S>(ring, number, up.rows(work.up.at(number).strip));
            else {
                DownPiece piece = work.down.at(number - work.up.total);
                load_next<S>(ring, number, down.rows(piece.place, piece.strip));
            }
        }
        if (work.total > 0) barrier_wait(&plan->held, 0);  // the values that CTAs wait for would queue behind the prefetch
        prefetch_next_weights<S>(ahead, ahead_bytes);
        return;
    }
    named_barrier_sync(2, S::THREADS - S::CONSUMERS);
    choose<false, true>(logits, 1, chosen);
    write_plan(work, chosen, plan);
    for (int number = 0; number < work.up.total; number++) store_up<S>(ring, number, work.up.at(number).strip, up);
    store_down<S>(ring, work.up.total, work.down, down, sums);
    if (threadIdx.x % 32 == 0) launches[blockIdx.x]++;
}
