"""Sampling with drafts: the distribution of tokens is that without drafts, and a planted bias is found."""

import math
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from firesteel.engine.sample import spans
from firesteel.types import Request, SamplingParams
from tests.engine.arrivals import serve, tokens
from tests.engine.drafted_requests import always, make
from tests.engine.scripted_drafts import ScriptedSpeculator

NUM, NEW = 2000, 3
TOGETHER = 16  # requests, whose drafts fit into a step of 64 rows
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
LEAST_COUNT = 20  # of a token that is counted by itself
UNLIKELY = 1e-5  # a probability below which two samples are called different


def draw_tokens(llm, *, seed, drafts=None):
    """Returns `NEW` tokens of each of `NUM` requests, with `drafts` as the second and third."""
    engine = make(llm, max_num_seqs=64, page_size=16, speculate=None if drafts is None else always())
    if drafts is not None:
        texts = {str(number): [0, *drafts] for number in range(NUM)}
        engine.speculator = ScriptedSpeculator(engine.speculator.policy, texts, most=NEW - 1, chance=1.0)
        engine.scheduler.draft_with(engine.speculator.find_drafts, engine.loop.store.most_requests)
    requests = [
        Request(
            request_id=str(number),
            token_ids=PROMPT,
            params=SamplingParams(max_tokens=NEW, temperature=0.6, seed=seed + number, ignore_eos=True),
        )
        for number in range(NUM)
    ]
    groups = [requests[begin : begin + TOGETHER] for begin in range(0, NUM, TOGETHER)]
    drawn = [row for group in groups for row in tokens(serve(engine, group)).values()]
    if drafts is not None:
        assert engine.totals.accepted_tokens > NUM // 20
    return drawn


def compare(ones, others):
    """Returns the probability that two samples of one distribution differ as much: a chi-squared test."""
    counts, theirs = Counter(ones), Counter(others)
    frequent = [token for token in counts | theirs if counts[token] + theirs[token] >= 2 * LEAST_COUNT]
    pairs = [(counts[token], theirs[token]) for token in frequent]
    pairs.append((len(ones) - sum(a for a, _ in pairs), len(others) - sum(b for _, b in pairs)))
    chi = sum((a - b) ** 2 / (a + b) for a, b in pairs if a + b)
    degrees = len(pairs) - 1
    assert degrees >= 5, "too few tokens are frequent to compare"
    # Wilson and Hilferty: the cube root of chi / degrees is nearly normal.
    spread = 2 / (9 * degrees)
    return 0.5 * math.erfc(((chi / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(2 * spread))


@pytest.fixture(scope="module")
def plain(llm):
    return draw_tokens(llm, seed=0)


@pytest.fixture(scope="module")
def drafts(plain):
    """The most frequent second and third tokens, so that many drafts are right."""
    return [Counter(drawn[place] for drawn in plain).most_common(1)[0][0] for place in (1, 2)]


def test_drafts_leave_the_distribution_of_every_token(llm, plain, drafts):
    """Other seeds: with the same ones all tokens would be the same."""
    drafted = draw_tokens(llm, seed=NUM, drafts=drafts)
    for place in range(NEW):
        ours, theirs = ([drawn[place] for drawn in sample] for sample in (plain, drafted))
        assert compare(ours, theirs) > UNLIKELY, place


def test_a_bias_towards_drafts_is_found(llm, plain, drafts, monkeypatch):
    """Planted: one wrong draft in ten is accepted."""
    calls = iter(range(10**9))

    def biased(span, results):
        first, *others = islice(results, 1 + len(span.draft_ids))
        accepted, last = 0, first
        for draft, other in zip(span.draft_ids, others, strict=True):
            if last.token_id != draft:
                if next(calls) % 10:
                    break
                last = replace(last, token_id=draft)
                first = last if accepted == 0 else first
            accepted, last = accepted + 1, other
        return replace(first, following=others[:accepted]) if accepted else first

    monkeypatch.setattr("firesteel.engine.engine.join_drafts", biased)
    assert spans.join_drafts is not biased
    drafted = draw_tokens(llm, seed=NUM, drafts=drafts)
    chances = [compare([d[place] for d in plain], [d[place] for d in drafted]) for place in range(NEW)]
    assert min(chances) < UNLIKELY, chances
