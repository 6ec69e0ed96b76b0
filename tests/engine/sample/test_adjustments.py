"""Penalties, bias, barred and allowed tokens against plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.engine.sample.adjustments import adjust
from firesteel.engine.sample.row import SampleRow
from firesteel.types import SamplingParams

V = 11
INF = float("inf")


def row(token_ids=(), num_prompt=0, allowed=None, stop_token_ids=(), **params):
    return SampleRow(
        params=SamplingParams(**params),
        position=len(token_ids),
        token_ids=token_ids,
        num_prompt=num_prompt,
        allowed=allowed,
        stop_token_ids=stop_token_ids,
    )


def adjust_slowly(logits, row):
    """Applies the published formulas of the penalties, token by token."""
    params, new = row.params, list(row.token_ids[row.num_prompt :])
    result = logits.tolist()
    for token in range(V):
        if token in list(row.token_ids):
            repetition = params.repetition_penalty
            result[token] = result[token] / repetition if result[token] > 0 else result[token] * repetition
        result[token] -= params.frequency_penalty * new.count(token)
        result[token] -= params.presence_penalty * (token in new)
        result[token] += params.logit_bias.get(token, 0)
        is_early = len(new) < params.min_tokens and token in row.stop_token_ids
        is_left_out = params.allowed_token_ids is not None and token not in params.allowed_token_ids
        is_bad = any(word[-1] == token and _ends_in(new, word[:-1]) for word in params.bad_words)
        if is_early or is_left_out or is_bad or (row.allowed is not None and not row.allowed[token]):
            result[token] = -INF
    return result


def _ends_in(token_ids, end):
    return len(end) <= len(token_ids) and all(
        a == b for a, b in zip(reversed(end), reversed(token_ids), strict=False)
    )


TOKENS = st.integers(0, V - 1)
PENALTIES = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 2.0])


@st.composite
def sample_rows(draw):
    token_ids = draw(st.lists(TOKENS, max_size=20))
    mask = draw(st.none() | st.lists(st.booleans(), min_size=V, max_size=V))
    return row(
        draw(st.sampled_from([token_ids, np.array(token_ids, dtype=np.int64)])),
        draw(st.integers(0, len(token_ids))),
        allowed=None if mask is None else torch.tensor(mask),
        stop_token_ids=draw(st.sets(TOKENS, max_size=3)),
        min_tokens=draw(st.integers(0, 5)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.5, 1.3])),
        presence_penalty=draw(PENALTIES),
        frequency_penalty=draw(PENALTIES),
        logit_bias=draw(st.dictionaries(TOKENS, st.sampled_from([-100.0, 1.5, 100.0]), max_size=3)),
        bad_words=tuple(draw(st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=3))),
        allowed_token_ids=draw(st.none() | st.lists(TOKENS, min_size=1, max_size=6).map(tuple)),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(sample_rows(), min_size=1, max_size=4), st.integers(0, 2**32))
def test_adjusted_logits_are_those_of_the_plain_loop(rows, seed):
    logits = 3 * torch.randn(len(rows), V, generator=torch.Generator().manual_seed(seed))
    before = logits.clone()
    expected = torch.tensor([adjust_slowly(row_logits, row) for row_logits, row in zip(logits, rows, strict=True)])
    torch.testing.assert_close(adjust(logits, rows), expected, rtol=1e-6, atol=1e-5)
    assert torch.equal(logits, before)


def test_rows_that_ask_for_nothing_are_not_copied():
    logits = torch.randn(2, V)
    rows = [row([1, 2, 3], 1, temperature=0.5, seed=3, top_p=0.5, stop_token_ids=[3]), row()]
    assert adjust(logits, rows) is logits


def test_prompt_counts_for_repetition_only():
    logits = torch.ones(2, V)
    adjusted = adjust(
        logits, [row([4], 1, repetition_penalty=2.0), row([4], 1, presence_penalty=1, frequency_penalty=1)]
    )
    assert adjusted[0, 4] == 0.5
    assert torch.equal(adjusted[1], logits[1])


def test_bad_word_is_barred_only_after_its_beginning_was_generated():
    logits = torch.zeros(3, V)
    rows = [
        row([4, 5], 0, bad_words=((4, 5, 6), (7,))),
        row([4, 5], 1, bad_words=((4, 5, 6),)),  # the prompt does not count
        row([5], 0, bad_words=((4, 5, 6),)),
    ]
    barred = [set(line.isneginf().nonzero().flatten().tolist()) for line in adjust(logits, rows)]
    assert barred == [{6, 7}, set(), set()]
    assert rows[0].params.reads_tokens and not row(bad_words=((7,),)).params.reads_tokens


def test_many_penalized_rows_are_processed_in_chunks(monkeypatch):
    logits = torch.randn(9, V)
    rows = [row([i, i], 0, frequency_penalty=1.0) for i in range(9)]
    whole = adjust(logits, rows)
    monkeypatch.setattr("firesteel.engine.sample.row._MAX_LOGITS", 2 * V)
    assert torch.equal(adjust(logits, rows), whole)
    assert (whole != logits).sum() == 9


@pytest.mark.parametrize("penalty", [1e-300, 1e300])
def test_extreme_repetition_penalties_stay_finite(penalty):
    adjusted = adjust(
        torch.tensor([[0.0, 3.0, -3.0] + [0.0] * (V - 3)]), [row([0, 1, 2], 3, repetition_penalty=penalty)]
    )
    assert adjusted.isfinite().all()


@pytest.mark.parametrize("token", [-1, V])
def test_token_outside_the_vocabulary_does_not_reach_another_row(token):
    with pytest.raises(ValueError, match=f"vocabulary of {V}"):
        adjust(torch.zeros(1, V), [row([token], 0, presence_penalty=1.0)])
