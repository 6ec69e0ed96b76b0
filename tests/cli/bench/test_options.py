"""Options that benchmarks share: lists of numbers."""

import pytest

from firesteel import UserError
from firesteel.cli.bench.options import parse_numbers, parse_shares


def test_numbers_are_separated_by_commas_and_repeated_ones_dropped():
    assert parse_numbers("--concurrency", "1, 16,1", 1, None) == (1, 16)


@pytest.mark.parametrize("text", ["", "0", "1,,2", "-1", "x", "1.5", "²"])
def test_other_words_are_refused(text):
    with pytest.raises(UserError, match="expected comma-separated numbers of at least 1, got"):
        parse_numbers("--concurrency", text, 1, None)


def test_numbers_above_the_limit_are_refused():
    assert parse_numbers("--batch", "8", 1, 8) == (8,)
    with pytest.raises(UserError, match="--batch 2,9: expected comma-separated numbers from 1 to 8, got '9'"):
        parse_numbers("--batch", "2,9", 1, 8)


def test_shares_lie_between_0_and_1():
    assert parse_shares("--acceptance", "0, 0.5,1,0.5") == (0.0, 0.5, 1.0)
    for text in ("", "x", "1.1", "-0.1", "nan", "0.5,,1"):
        with pytest.raises(UserError, match=r"--acceptance .*expected comma-separated numbers from 0 to 1, got"):
            parse_shares("--acceptance", text)
