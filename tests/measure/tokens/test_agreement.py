"""Comparison of two runs: equal tokens, first difference and margin."""

import pytest

from firesteel.measure.tokens.agreement import Agreement, compare, compare_all


def test_equal_tokens_have_no_difference():
    pair = compare([1, 2, 3], [1, 2, 3], [0.1, 0.2, 0.3])
    assert pair.is_equal and (pair.num_tokens, pair.num_equal, pair.num_before, pair.margin) == (3, 3, 3, None)


def test_first_difference_counts_even_if_later_tokens_agree():
    pair = compare([1, 2, 3, 4], [1, 9, 3, 9], [0.1, 0.2, 0.3, 0.4])
    assert not pair.is_equal
    assert (pair.num_tokens, pair.num_equal, pair.num_before, pair.margin) == (4, 2, 1, 0.2)


@pytest.mark.parametrize(("expected", "actual"), [([1, 2, 3], [1, 2]), ([1, 2], [1, 2, 3])])
def test_surplus_tokens_are_differences(expected, actual):
    pair = compare(expected, actual, [0.5] * len(expected))
    assert not pair.is_equal and (pair.num_tokens, pair.num_equal, pair.num_before) == (3, 2, 2)


def test_shares_and_rate_cover_all_requests():
    expected = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8], "c": [1, 1, 1, 1]}
    actual = {"c": [1, 1, 1, 1], "b": [5, 6, 0, 8], "a": [0, 0, 0, 0]}
    margins = {"a": [0.25] * 4, "b": [0.125] * 4}
    agreement = Agreement(equality="x = y", evidence="z", pairs=tuple(compare_all(expected, actual, margins)))
    assert agreement.num_tokens == 12 and agreement.token_share == 7 / 12 and agreement.request_share == 1 / 3
    assert agreement.tokens_before == 1.0 and agreement.largest_margin == 0.25
    assert agreement.differences_a_token == 2 / (1 + 3 + 4)
    assert agreement.as_dict()["requests"] == 3 and agreement.as_dict()["tokens_before_first_difference"] == 1.0


def test_full_agreement_has_no_first_difference():
    pairs = tuple(compare_all({"a": [1]}, {"a": [1]}, {}))
    agreement = Agreement(equality="x = y", evidence="z", pairs=pairs)
    assert (agreement.token_share, agreement.request_share, agreement.differences_a_token) == (1, 1, 0)
    assert agreement.tokens_before is None and agreement.largest_margin is None
