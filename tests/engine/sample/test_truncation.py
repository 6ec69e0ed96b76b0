"""Top-k, top-p and min-p against their plain definition."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.engine.sample.truncation import truncate
from firesteel.types import SamplingParams

INF = float("inf")


def kept_slowly(weights, top_k, top_p, min_p):
    """Returns the ids kept: the most likely one by one, until k or the share is reached, and ties of the last."""
    likely = sorted(weights, reverse=True)[: top_k if top_k > 0 else None]
    taken = []
    for weight in likely:
        if sum(taken) >= top_p * sum(likely):
            break
        taken.append(weight)
    return [i for i, weight in enumerate(weights) if weight >= taken[-1] and weight >= min_p * max(weights)]


def kept(weights, params):
    scores = torch.tensor(weights, dtype=torch.float64).log()
    scores = (scores - scores.amax(-1, keepdim=True)).float()
    return [row.isfinite().nonzero().flatten().tolist() for row in truncate(scores, params)]


@st.composite
def problems(draw):
    """Integer weights, and shares half-way between possible sums, so that rounding decides nothing."""
    width, count = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    rows = []
    for _ in range(count):
        weights = draw(st.lists(st.integers(1, 30), min_size=width, max_size=width))
        top_k = draw(st.integers(-1, width + 2))
        total = sum(sorted(weights, reverse=True)[: top_k if top_k > 0 else None])
        top_p = draw(
            st.just(Fraction(1)) | st.integers(0, total - 1).map(lambda m, t=total: Fraction(2 * m + 1, 2 * t))
        )
        most = max(weights)
        min_p = draw(
            st.just(Fraction(0)) | st.integers(0, most - 1).map(lambda m, t=most: Fraction(2 * m + 1, 2 * t))
        )
        rows.append((weights, top_k, top_p, min_p))
    return rows


@settings(max_examples=200, deadline=None)
@given(problems())
def test_tokens_kept_are_those_of_the_definition(rows):
    params = [SamplingParams(top_k=k, top_p=float(p), min_p=float(m)) for _, k, p, m in rows]
    assert kept([weights for weights, *_ in rows], params) == [kept_slowly(*row) for row in rows]


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
def test_nucleus_of_a_large_vocabulary_is_minimal(top_p):
    scores = 4 * torch.randn(3, 50_000, generator=torch.Generator().manual_seed(1))
    scores -= scores.amax(-1, keepdim=True)
    probabilities = scores.double().softmax(-1)
    nucleus = truncate(scores.clone(), [SamplingParams(top_p=top_p)] * 3).isfinite()
    for row, inside in zip(probabilities, nucleus, strict=True):
        share = row[inside].sum()
        assert share >= top_p - 1e-6
        assert share - row[inside].min() < top_p + 1e-6
        assert row[~inside].max() < row[inside].min()


def test_equally_likely_tokens_stay_together():
    assert kept([[1, 2, 2, 2, 1]], [SamplingParams(top_k=1)]) == [[1, 2, 3]]
    assert kept([[1, 2, 2, 2, 1]], [SamplingParams(top_p=0.3)]) == [[1, 2, 3]]


@pytest.mark.parametrize("params", [{"top_p": 5e-324}, {"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9, "min_p": 1.0}])
def test_at_least_the_most_likely_stays(params):
    assert kept([[3, 1, 7, 2]], [SamplingParams(**params)]) == [[2]]


@pytest.mark.parametrize("top_k", [-1, 0, 4, 5, 2**31 - 1])
def test_top_k_of_at_least_the_vocabulary_keeps_all(top_k):
    assert kept([[3, 1, 7, 2], [3, 1, 7, 2]], [SamplingParams(top_k=top_k), SamplingParams(top_k=1)]) == [
        [0, 1, 2, 3],
        [2],
    ]


def test_top_k_alone_keeps_tokens_too_unlikely_to_weigh_anything():
    scores = torch.tensor([[0.0, -80.0, -90.0, -100.0]])
    assert truncate(scores, [SamplingParams(top_k=3)]).isfinite().tolist() == [[True, True, True, False]]


def test_share_that_is_reached_exactly_keeps_no_further_token():
    scores = torch.tensor([[0.0, 0.0, -200.0]])  # the last weighs nothing
    kept_of = truncate(scores, [SamplingParams(top_p=math.nextafter(1, 0))]).isfinite()
    assert kept_of.tolist() == [[True, True, False]]


def test_top_p_is_a_share_of_what_top_k_left():
    weights = [4, 3, 2, 1]
    assert kept([weights], [SamplingParams(top_p=0.55)]) == [[0, 1]]
    assert kept([weights], [SamplingParams(top_p=0.55, top_k=2)]) == [[0]]


def test_impossible_tokens_stay_impossible():
    scores = torch.tensor([[0.0, -INF, -1.0, -INF]])
    for params in ({"top_k": 3}, {"top_p": 0.99}, {"min_p": 0.01}, {}):
        assert truncate(scores.clone(), [SamplingParams(**params)]).isfinite().tolist() == [
            [True, False, True, False]
        ]


def test_row_without_limits_is_untouched_beside_one_with_them():
    scores = torch.tensor([[0.0, -50.0, -math.pi]] * 2)
    truncated = truncate(scores.clone(), [SamplingParams(), SamplingParams(top_p=0.5, min_p=0.5)])
    assert torch.equal(truncated[0], scores[0])
    assert truncated[1].tolist() == [0.0, -INF, -INF]
