"""Sizes of captured steps: exact where few, never much padding, few widths."""

import pytest

from firesteel.engine.step.step_sizes import padded_pages, padded_requests, power_of_two, step_sizes


def test_every_number_up_to_sixteen_has_its_own_step():
    assert [padded_requests(count, 64) for count in range(1, 17)] == list(range(1, 17))


@pytest.mark.parametrize("most", [1, 7, 16, 33, 64, 256])
def test_no_more_than_twelve_percent_of_a_step_is_padding(most):
    for count in range(1, most + 1):
        size = padded_requests(count, most)
        assert count <= size <= most and (size - count) / size <= 0.12


def test_sizes_above_sixteen_are_few_and_hold_the_round_ones():
    sizes = {padded_requests(count, 64) for count in range(17, 65)}
    assert len(sizes) == 16 and {24, 32, 48, 64} <= sizes


def test_widths_double_and_end_with_the_context():
    widths = [padded_pages(tokens, 64, 5000) for tokens in (1, 1024, 1025, 2048, 2049, 4097, 5000)]
    assert widths == [16, 16, 32, 32, 64, 79, 79]
    assert padded_pages(300, 64, 256) == 5, "what is there must fit"


def test_power_of_two_is_the_least_that_is_not_below():
    assert [power_of_two(count) for count in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


def test_steps_of_one_to_many_requests_are_few():
    assert step_sizes(0, 64) == [] and step_sizes(3, 64) == [1, 2, 3]
    assert step_sizes(20, 64) == [*range(1, 17), 18, 20] and step_sizes(17, 17)[-1] == 17
