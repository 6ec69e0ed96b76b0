// fc2, the weighted sum over a token's experts and the residual, for one to eight tokens.
#include "choose.cuh"
#include "multiply_fp4.cuh"

extern __shared__ __align__(128) char shared[];
constexpr int H = HIDDEN, I = INTERMEDIATE, STRIPS = H / 16;
using S = Stream<true, I, 1, NUM_WARPS, NUM_STAGES, TOKENS>;
// Rows of `inner` that a warp holds its columns of: all, from the start, or those of one expert after another.
constexpr int HELD = HOLDS_ALL ? TOKENS * A : TOKENS;
constexpr int ROOM_BYTES = S::WARPS * HELD * S::BYTES_EACH, UNIT_BYTES = S::WARPS * HELD * 4;
static_assert(total(Ring<S>::BYTES, ROOM_BYTES, UNIT_BYTES, sizeof(Chosen)) == SHARED_BYTES, "as launched");

struct Early {
    float added[S::VALUES], old[S::VALUES];
};
DEVICE int held_at(int token, int slot) { return HOLDS_ALL ? token * A + slot : token; }

// Cuts this warp's columns of a row of `inner` into bytes; `units`: what they are worth, times the expert's weight.
DEVICE void hold(const u16 *inner, const Chosen *chosen, int token, int slot, char *bytes, float *units) {
    int at = held_at(token, slot);
    float unit = split_bytes<S>((const char *)(inner + (u64)(token * A + slot) * I), bytes + at * S::BYTES_EACH);
    if (threadIdx.x % 32 == 0) units[at] = unit * chosen->weight[token][slot];
}

// What a warp needs of the tokens that want expert `place`.
DEVICE void take_held(const Chosen *chosen, int place, const char *bytes, const float *units, Own<S> &own) {
#pragma unroll
    for (int set = 0; set < S::SETS; set++) {
        auto bytes_of = [&](int token) {
            int slot = chosen->slot[place][token];
            return slot < 0 ? nullptr : bytes + held_at(token, slot) * S::BYTES_EACH;
        };
        take_bytes<S>(set, bytes_of, own.b[set], own.minus[set]);
        int token = token_of<S>(set), slot = token < TOKENS ? chosen->slot[place][token] : -1;
        own.unit[set] = slot < 0 ? 0.f : units[held_at(token, slot)];
    }
}

// Codes, scales and bias are of [EXPERTS, HIDDEN] rows, `inner` is [num_tokens, ACTIVE, INTERMEDIATE].
extern "C" __global__ void __launch_bounds__(S::THREADS, PROGRAMS_PER_SM)
decode_fc2(const u16 *inner, const float *logits, const u8 *codes, const u8 *scales, const u16 *bias, u16 *r,
           int num_tokens) {
    Cut cut{shared};
    Ring<S> ring(cut);
    char *room = cut.take(ROOM_BYTES);
    float *all_units = (float *)cut.take(UNIT_BYTES);
    Chosen *chosen = (Chosen *)cut.take(sizeof(Chosen));
    ring.start();
    // a program's strips, once for each expert
    int strips = (STRIPS - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x, lane = threadIdx.x % 32;
    auto strip_of = [&](int unit) { return (int)blockIdx.x + unit % strips * (int)gridDim.x; };
    if (threadIdx.x >= S::CONSUMERS) {
        choose<true>(logits, num_tokens, chosen);  // final since before the kernel ahead of this one let it start
        arrive_some(2, S::THREADS);
        int count = chosen->count * strips;
        feed<S, Early>(
            ring, count,
            [&](int unit) {
                u64 row = (u64)chosen->expert[unit / strips] * H;
                return Rows{codes + row * S::ROW_BYTES, scales + row * S::SCALE_ROW, strip_of(unit) * 16, 8};
            },
            [&](int unit, Early &e) {
                wait_for_inputs();
#pragma unroll
                for (int i = 0; i < S::VALUES; i++) {
                    int at = (32 * i + lane) % S::COUNT, token = min(at % TOKENS, num_tokens - 1);
                    int row = strip_of(unit) * 16 + at / TOKENS;
                    e.old[i] = wide(r[token * H + row]), e.added[i] = 0;
#pragma unroll
                    for (int rank = 0; rank < A; rank++) {
                        u64 expert = chosen->id[token][rank];
                        e.added[i] += chosen->weight[token][rank] * wide(bias[expert * H + row]);
                    }
                }
            },
            [&](int unit) { return unit >= count - strips; },
            [&](int unit, const Early &e, const float *sum) {
                dawdle();
#pragma unroll
                for (int i = 0; i < S::VALUES; i++) {
                    int at = 32 * i + lane, token = at % TOKENS, row = strip_of(unit) * 16 + at / TOKENS;
                    if (at < S::COUNT && token < num_tokens)
                        r[token * H + row] = narrow(e.old[i] + round_bf16(sum[i] + e.added[i]));
                }
            },
            [] { let_next_start(); });
        return;
    }
    sync_some(2, S::THREADS);
    wait_for_inputs();
    int warp = threadIdx.x / 32, count = chosen->count;
    char *bytes = room + warp * HELD * S::BYTES_EACH;
    float *units = all_units + warp * HELD;
    if (HOLDS_ALL) {
#pragma unroll 4
        for (int pair = 0; pair < (TOKENS == 1 ? 1 : num_tokens) * A; pair++)
            hold(inner, chosen, pair / A, pair % A, bytes, units);
        __syncwarp();
    }
    float sums[MOST_STRIPS][S::SETS][2] = {};
    for (int place = 0, number = 0; place < count; place++) {
        if (!HOLDS_ALL) {
            __syncwarp();  // all lanes have taken what was held
            for (int token = 0; token < num_tokens; token++) {
                int slot = chosen->slot[place][token];
                if (slot >= 0) hold(inner, chosen, token, slot, bytes, units);
            }
            __syncwarp();
        }
        Own<S> own;
        take_held(chosen, place, bytes, units, own);
#pragma unroll
        for (int strip = 0; strip < MOST_STRIPS; strip++) {
            if (strip >= strips) break;
            float c[S::SETS][2];
            multiply_codes<S>(ring, number, own, c);
#pragma unroll
            for (int set = 0; set < S::SETS; set++)
                sums[strip][set][0] += c[set][0], sums[strip][set][1] += c[set][1];
            if (place == count - 1) leave_codes<S>(ring, number, sums[strip]);
            ring.done(number++);
        }
    }
}
