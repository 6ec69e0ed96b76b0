#pragma once
// Top-k choice of experts for a few tokens, from the router's logits.
#include "primitives.cuh"

constexpr int TOKENS = MAX_TOKENS, E = EXPERTS, A = ACTIVE, WIDEST = MOST_WIDTH;
static_assert(TOKENS * A <= 32, "one lane per (token, expert) pair");

// The distinct experts chosen by the tokens, with the tokens that use each (at most WIDEST per entry) and their
// weights.
struct Chosen {
    int count;
    int expert[TOKENS * A];
    int wanted[TOKENS * A];         // number of tokens that use it
    int token[TOKENS * A][TOKENS];  // which tokens
    int slot[TOKENS * A][TOKENS];   // rank of the expert among the token's A
    int id[TOKENS][A];
    float weight[TOKENS][A];
};

// Called by a whole warp. Among equal logits the lowest expert wins. WHICH writes everything but the weights, WEIGHTS
// the weights: the loaders skip the weights, which take time, and the storer then writes them without touching what
// others already read. Up to four tokens are processed together to hide the latency of reading their logits.
template <bool WHICH, bool WEIGHTS> DEVICE void choose(const float *logits, int num_tokens, Chosen *chosen) {
    constexpr int OWN = (E + 31) / 32, TOGETHER = TOKENS < 4 ? TOKENS : 4;
    int lane = threadIdx.x % 32;
    for (int first = 0; first < (TOKENS == 1 ? 1 : num_tokens); first += TOGETHER) {
        u32 keys[TOGETHER][OWN];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            int token = TOGETHER == 1 ? first : min(first + j, num_tokens - 1);
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                int expert = lane * OWN + i;
                u32 bits = expert < E ? __float_as_uint(logits[token * E + expert]) : 0xFFFFFFFFu;
                keys[j][i] = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
            }
        }
        float top[TOGETHER], total[TOGETHER] = {}, mine[TOGETHER] = {};
#pragma unroll
        for (int rank = 0; rank < A; rank++)
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                u32 best = keys[j][0];
#pragma unroll
                for (int i = 1; i < OWN; i++) best = keys[j][i] > best ? keys[j][i] : best;
                u32 all = __reduce_max_sync(~0u, best);
                int which = 0;
#pragma unroll
                for (int i = OWN - 1; i >= 0; i--) which = keys[j][i] == all ? i : which;
                int winner = __ffs(__ballot_sync(~0u, best == all)) - 1;
                if (WHICH && lane == winner && (TOGETHER == 1 || first + j < num_tokens))
                    chosen->id[first + j][rank] = lane * OWN + which;
#pragma unroll
                for (int i = 0; i < OWN; i++) keys[j][i] = lane == winner && i == which ? 0 : keys[j][i];
                if (WEIGHTS) {
                    float logit = __uint_as_float(all & 0x80000000u ? all & 0x7FFFFFFFu : ~all);
                    if (rank == 0) top[j] = logit;
                    float share = __expf(logit - top[j]);
                    total[j] += share;
                    if (lane == rank) mine[j] = share;
                }
            }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (WEIGHTS && lane < A && (TOGETHER == 1 || first + j < num_tokens))
                chosen->weight[first + j][lane] = mine[j] / total[j];
    }
    __syncwarp();
    if (!WHICH) return;
    if (TOKENS == 1) {
        if (lane < A) {
            chosen->expert[lane] = chosen->id[0][lane], chosen->wanted[lane] = 1;
            chosen->token[lane][0] = 0, chosen->slot[lane][0] = lane;
        }
        if (lane == 0) chosen->count = A;
    } else {
        // lane p is pair p = (token, rank); the first of every WIDEST lanes with the same expert leads the entry
        int token = lane / A;
        bool is_pair = token < num_tokens;
        int expert = is_pair ? chosen->id[token][lane % A] : -1 - lane;
        u32 same = __match_any_sync(~0u, expert);
        if (WIDEST < TOKENS && __popc(same & (1u << lane) - 1) % WIDEST == 0) same &= ~0u << lane;
        bool leads = is_pair && __ffs(same) - 1 == lane;
        u32 leaders = __ballot_sync(~0u, leads);
        if (leads) {
            int place = __popc(leaders & (1u << lane) - 1);
            int wanted = __popc(same);
            if (WIDEST < TOKENS) wanted = min(wanted, WIDEST);
            chosen->expert[place] = expert, chosen->wanted[place] = wanted;
            for (int i = 0; i < wanted; i++, same &= same - 1) {
                int pair = __ffs(same) - 1;
                chosen->token[place][i] = pair / A, chosen->slot[place][i] = pair % A;
            }
        }
        if (lane == 0) chosen->count = __popc(leaders);
    }
    __syncwarp();
}

// Called by all loaders: the first chooses for all of them.
template <class S, bool WEIGHTS> DEVICE void choose_once(const float *logits, int num_tokens, Chosen *chosen) {
    if (S::LOADERS == 1 || threadIdx.x / 32 == S::WARPS) choose<true, WEIGHTS>(logits, num_tokens, chosen);
    if (S::LOADERS > 1) named_barrier_sync(5, 32 * S::LOADERS);
}
