#pragma once
// What fc2 does with a strip, and in which order; knows no kernel.
#include "experts.cuh"

// Down: codes, scales and bias are of [EXPERTS, HIDDEN] rows; a strip's sums are those of all chosen experts.
template <class S> struct Down {
    static constexpr int STRIPS = H / 16;
    const Chosen *chosen;
    const u8 *codes, *scales;
    const u16 *bias;
    u16 *r;
    int num_tokens;

    __device__ __forceinline__ Rows rows(int place, int strip) const {
        u64 row = (u64)chosen->expert[place] * H;
        return Rows{codes + row * S::ROW_BYTES, scales + row * S::SCALE_ROW, strip * 16, 8};
    }
    __device__ __forceinline__ void early(int strip, Early &e) const {
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            int at = (32 * i + threadIdx.x % 32) % S::COUNT, token = min(at % TOKENS, num_tokens - 1);
            int row = strip * 16 + at / TOKENS;
            e.old[i] = wide(r[token * H + row]), e.added[i] = 0;
#pragma unroll
            for (int rank = 0; rank < A; rank++) {
                u64 expert = chosen->id[token][rank];
                e.added[i] += chosen->weight[token][rank] * wide(bias[expert * H + row]);
            }
        }
    }
    __device__ __forceinline__ void finish(int strip, const Early &e, const float *sum) const {
        dawdle();
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            int at = 32 * i + threadIdx.x % 32, token = at % TOKENS, row = strip * 16 + at / TOKENS;
            if (at < S::COUNT && token < num_tokens)
                r[token * H + row] = narrow(e.old[i] + round_bf16(sum[i] + e.added[i]));
        }
    }
};

struct DownPiece : Piece {
    int place;  // of the expert among the chosen
};

// fc2's pieces: a program's strips, once for each chosen expert. PAIRED: of a strip too many each program of the pair
// takes half the experts; the second begins with its half, so that the first need not wait for it.
template <bool PAIRED> struct DownWork {
    int first, step, whole, shared, count, turn, before, after, total;
    bool is_second;
    __device__ __forceinline__ DownWork(int strips, int count) : count(count) {
        step = gridDim.x / (PAIRED ? 2 : 1), first = blockIdx.x / (PAIRED ? 2 : 1), is_second = false;
        whole = (strips - first + step - 1) / step, shared = -1, turn = 0;
        if (PAIRED) {
            is_second = blockIdx.x % 2;
            if (whole % 2) shared = first + (whole - 1) * step;
            whole /= 2, turn = count / 2;
            first += is_second ? whole * step : 0;
        }
        before = whole + (shared >= 0 && is_second), after = whole + (shared >= 0 && !is_second);
        total = (count - turn) * before + turn * after;
    }
    // Experts are met from the middle on, then from the first.
    __device__ __forceinline__ int place(int round) const {
        return round + turn < count ? round + turn : round + turn - count;
    }
    __device__ __forceinline__ int strips(int round) const { return round < count - turn ? before : after; }
    __device__ __forceinline__ bool ends(int round, int index) const {
        return round == (index == whole && is_second ? count - turn : count) - 1;
    }
    __device__ __forceinline__ DownPiece at(int number) const {
        int early = (count - turn) * before, round, index;
        if (number < early) round = number / before, index = number % before;
        else round = count - turn + (number - early) / after, index = (number - early) % after;
        bool is_shared = PAIRED && index == whole;
        return {{is_shared ? shared : first + index * step, 0, ends(round, index), is_shared && is_second,
                 is_shared && !is_second}, place(round)};
    }
};

// Rows of `inner` that a warp holds its columns of: all, from the start, or those of one expert after another.
constexpr int HELD = HOLDS_ALL ? TOKENS * A : TOKENS;
DEVICE int held_at(int token, int slot) { return HOLDS_ALL ? token * A + slot : token; }

// Cuts this warp's columns of a row of `inner` into bytes; `units`: what they are worth, times the expert's weight.
template <class S> DEVICE void hold(const u16 *inner, const Chosen *chosen, int token, int slot, char *bytes,
                                    float *units) {
    int at = held_at(token, slot);
    float unit = split_bytes<S>((const char *)(inner + (u64)(token * A + slot) * I), bytes + at * S::BYTES_EACH);
    if (threadIdx.x % 32 == 0) units[at] = unit * chosen->weight[token][slot];
}

// What a warp needs of the tokens that want expert `place`.
template <class S>
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

// The multiplying warps' whole work on fc2, from the ring's place `number` on. `room` and `all_units` hold HELD rows
// for each warp.
template <class S, bool PAIRED>
DEVICE void multiply_down(Ring<S> &ring, int number, const DownWork<PAIRED> &work, const Chosen *chosen,
                          const u16 *inner, char *room, float *all_units, int num_tokens) {
    constexpr int ROOM = MOST_STRIPS + PAIRED;
    int warp = threadIdx.x / 32;
    char *bytes = room + warp * HELD * S::BYTES_EACH;
    float *units = all_units + warp * HELD;
    if (HOLDS_ALL) {
#pragma unroll 4
        for (int pair = 0; pair < (TOKENS == 1 ? 1 : num_tokens) * A; pair++)
            hold<S>(inner, chosen, pair / A, pair % A, bytes, units);
        __syncwarp();
    }
    float sums[ROOM][S::SETS][2] = {};
    for (int round = 0; round < work.count; round++) {
        int place = work.place(round), strips = work.strips(round);
        if (!HOLDS_ALL) {
            __syncwarp();  // all lanes have taken what was held
            for (int token = 0; token < num_tokens; token++) {
                int slot = chosen->slot[place][token];
                if (slot >= 0) hold<S>(inner, chosen, token, slot, bytes, units);
            }
            __syncwarp();
        }
        Own<S> own;
        take_held<S>(chosen, place, bytes, units, own);
#pragma unroll
        for (int index = 0; index < ROOM; index++) {
            if (index >= strips) break;
            float c[S::SETS][2];
            multiply_codes<S>(ring, number, own, c);
#pragma unroll
            for (int set = 0; set < S::SETS; set++)
                sums[index][set][0] += c[set][0], sums[index][set][1] += c[set][1];
            if (work.ends(round, index)) leave_codes<S>(ring, number, sums[index]);
            ring.tell(ring.done, number++);
        }
    }
}
