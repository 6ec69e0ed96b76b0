"""Numbers are written as readers expect them."""

import pytest

from firesteel.lab.report.number_format import NO_BREAK, count, duration, interval, precise, short


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0314, "0.0314"), (4.2, "4.2"), (812.4, "812"), (12345, "12.3k"), (3.4e6, "3.4M"), (0, "0")],
)
def test_numbers_are_short(value, text):
    assert short(value) == text


@pytest.mark.parametrize(("value", "text"), [(27.6234, "27.62"), (999.94, "999.9"), (12345.6, "12,346")])
def test_measured_numbers_have_four_digits(value, text):
    assert precise(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (512, "512"), (4096, "4k"), (32768, "32k"), (5000, "5000")])
def test_counts_of_tokens_are_powers_of_two(value, text):
    assert count(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(14.3, "14 s"), (235, "3 min 55 s"), (5412, "1 h 30 min")])
def test_durations_are_in_words(seconds, text):
    assert duration(seconds).replace(NO_BREAK, " ") == text


def test_intervals_have_four_digits():
    assert interval(655.61, 1061.4) == "655.6 to 1,061"
