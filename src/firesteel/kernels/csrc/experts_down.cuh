#pragma once
// fc2 of the experts: down projection, weighted sum over a token's experts, residual.
#include "experts.cuh"

// Codes, scales and bias have [EXPERTS, HIDDEN] rows; a strip's sums run over all chosen experts.
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
    __device__ __forceinline__ void prefetch(int strip, Prefetched &e) const {
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
    __device__ __forceinline__ void store(int strip, const Prefetched &e, const float *sum) const {
        random_delay();
#pragma unroll
        for (int i = 0; i < S::VALUES; i++) {
            int at = 32 * i + threadIdx.x % 32, token = at % TOKENS, row = strip * 16 + at / TOKENS;
            if (at < S::COUNT && token < num_tokens)
                r[token * H + row] = narrow(e.old[i] + round_bf16(sum[i] + e.added[i]));
        }
    }
};

struct DownPiece : Piece {
    int place, index;  // the expert's index among the chosen; the strip's index among this CTA's
};

// fc2's pieces: every strip of the CTA, once per chosen expert. PAIRED: if two CTAs of a cluster have an odd number of
// strips, each takes half the experts of the last one; the second CTA starts with its half, so that the first need not
// wait for it. The rounds then go over experts from the middle to the end and on from the first, unless IN_ORDER.
template <bool PAIRED, bool IN_ORDER = false> struct DownWork {
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
    __device__ __forceinline__ int place(int round) const {
        if (IN_ORDER) return round;
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
        return piece(round, index);
    }
    __device__ __forceinline__ DownPiece piece(int round, int index) const {
        bool is_shared = PAIRED && index == whole;
        return {{is_shared ? shared : first + index * step, 0, ends(round, index), is_shared && is_second,
                 is_shared && !is_second},
                place(round),
                index};
    }
};

// Rows of `inner` that a warp keeps quantised in shared memory: all from the start (HOLDS_ALL), or one expert's at a
// time.
constexpr int HELD = HOLDS_ALL ? TOKENS * A : NUM_HELD;

// Quantises this warp's columns of a row of `inner` into bytes; `units` gets their step size times the expert's weight.
template <class S> DEVICE void hold(const Pairs<S> &row, float weight, int at, char *bytes, float *units) {
    float unit = split_bytes<S>(row, bytes + at * S::BYTES_EACH);
    if (threadIdx.x % 32 == 0) units[at] = unit * weight;
}

// Multiplies `strips` pieces from `number` on, all of expert `place`, for WIDTH tokens.
template <class S, int WIDTH>
DEVICE void multiply_held(Ring<S> &ring, int number, int strips, const Chosen *chosen, int place, const char *bytes,
                          const float *units) {
    using N = Narrow<S, WIDTH>;
    auto at = [&](int i) { return HOLDS_ALL ? chosen->token[place][i] * A + chosen->slot[place][i] : i; };
    Fragments<N> own;
    load_wanted<N>(
        chosen, place, [&](int i) { return bytes + at(i) * S::BYTES_EACH; }, [&](int i) { return units[at(i)]; }, own);
    for (int index = 0; index < strips; index++) {
        float c[N::SETS][2];
        multiply_fp4<N>(ring, number + index, own, c);
        write_sums_fp4<N>(ring, number + index, c);
        ring.arrive(ring.done, number + index);
    }
}

// The consumers' main loop for fc2, from piece `number` of the ring on. `room` and `all_units` have space for HELD rows
// per warp.
template <class S, bool PAIRED>
DEVICE void multiply_down(Ring<S> &ring, int number, const DownWork<PAIRED> &work, const Chosen *chosen,
                          const u16 *inner, char *room, float *all_units, int num_tokens) {
    int warp = threadIdx.x / 32;
    char *bytes = room + warp * HELD * S::BYTES_EACH;
    float *units = all_units + warp * HELD;
    auto row_of = [&](int place, int i) {
        return (const char *)(inner + (u64)(chosen->token[place][i] * A + chosen->slot[place][i]) * I);
    };
    auto weight_of = [&](int place, int i) { return chosen->weight[chosen->token[place][i]][chosen->slot[place][i]]; };
    if (HOLDS_ALL) {
#pragma unroll 4
        for (int pair = 0; pair < (TOKENS == 1 ? 1 : num_tokens) * A; pair++) {
            Pairs<S> row;
            row.read((const char *)(inner + (u64)pair * I));
            hold<S>(row, chosen->weight[pair / A][pair % A], pair, bytes, units);
        }
        __syncwarp();
    }
    Pairs<S> next;  // row of the first token that uses the next expert, already in flight
    if (!HOLDS_ALL) next.read(row_of(work.place(0), 0));
    for (int round = 0; round < work.count; round++) {
        int place = work.place(round), strips = work.strips(round);
        if (!HOLDS_ALL) {
            __syncwarp();  // all lanes have loaded the previous rows
            hold<S>(next, weight_of(place, 0), 0, bytes, units);
            if (round + 1 < work.count) next.read(row_of(work.place(round + 1), 0));
            for (int i = 1; i < chosen->wanted[place]; i++) {
                Pairs<S> row;
                row.read(row_of(place, i));
                hold<S>(row, weight_of(place, i), i, bytes, units);
            }
            __syncwarp();
        }
        WITH_WIDTH(width_of(chosen, place),
                   (multiply_held<S, WIDTH>(ring, number, strips, chosen, place, bytes, units)))
        number += strips;
    }
}

// The storer's part. `all` [MOST_STRIPS][COUNT] accumulates each of the CTA's strips over the experts, by row and
// token.
template <class S> DEVICE void clear_sums(float *all) {
    for (int at = threadIdx.x % 32; at < MOST_STRIPS * S::COUNT; at += 32) all[at] = 0;
    __syncwarp();
}
template <class S>
DEVICE void store_down(Ring<S> &ring, int number, const DownPiece &piece, const Down<S> &down, float *all) {
    const Chosen *chosen = down.chosen;
    bool is_whole = piece.ends && !piece.sends;
    Prefetched e;
    if (is_whole) down.prefetch(piece.strip, e);
    ring.wait(ring.done, number);
    float sum[S::VALUES], *mine = all + piece.index * S::COUNT;
    int width = width_of(chosen, piece.place);
    ring.add_up(number, sum, 16 * width);
    ring.arrive(ring.free, number);
#pragma unroll
    for (int i = 0; i < S::VALUES; i++) {
        if (32 * i >= 16 * width) break;
        int at = 32 * i + threadIdx.x % 32, row = at / width, which = at % width;
        if (row < 16 && (TOKENS == 1 || which < chosen->wanted[piece.place]))
            mine[row * TOKENS + chosen->token[piece.place][which]] += sum[i];
    }
    if (!piece.ends) return;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < S::VALUES; i++) sum[i] = mine[(32 * i + threadIdx.x % 32) % S::COUNT];
    if (piece.sends) ring.send(sum);
    if (piece.receives) ring.receive(sum);
    if (is_whole) down.store(piece.strip, e, sum);
}
template <class S, bool PAIRED, bool IN_ORDER>
DEVICE void store_down(Ring<S> &ring, int number, const DownWork<PAIRED, IN_ORDER> &work, const Down<S> &down,
                       float *all) {
    clear_sums<S>(all);
    for (int at = 0; at < work.total; at++) store_down<S>(ring, number + at, work.at(at), down, all);
}
