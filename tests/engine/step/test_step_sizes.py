"""Sizes of decoding steps: exact for few requests, little padding, few sizes and widths."""

import pytest

from firesteel.engine.step.step_sizes import padded_pages, padded_requests, power_of_two, reaches, step_sizes


def test_every_number_up_to_eight_has_its_own_step():
    assert [padded_requests(count, 64) for count in range(1, 9)] == list(range(1, 9))


@pytest.mark.parametrize("most", [1, 7, 16, 33, 64, 256])
def test_no_more_than_a_third_of_a_step_is_padding(most):
    for count in range(1, most + 1):
        size = padded_requests(count, most)
        assert count <= size <= most and (size - count) / size <= 1 / 3
        assert size in step_sizes(most)


def test_sizes_above_eight_are_powers_of_two_and_three_quarters_of_them():
    assert step_sizes(64) == [*range(1, 9), 12, 16, 24, 32, 48, 64]
    assert step_sizes(256)[-4:] == [96, 128, 192, 256] and step_sizes(17)[-2:] == [16, 17]


def test_widths_are_eight_times_the_next_and_end_with_the_context():
    widths = [padded_pages(tokens, 64, 40000) for tokens in (1, 4096, 4097, 32768, 32769, 40000)]
    assert widths == [64, 64, 512, 512, 625, 625]
    assert padded_pages(300, 64, 256) == 5, "what is there must fit"


@pytest.mark.parametrize("most", [1, 4096, 4097, 40000, 131072])
def test_every_width_is_that_of_a_reach(most):
    widths = [-(-reach // 64) for reach in reaches(most)]
    assert widths == sorted(set(widths)) and len(widths) <= 3
    for tokens in {1, most // 3 or 1, most}:
        assert padded_pages(tokens, 64, most) in widths


def test_power_of_two_is_the_smallest_that_is_at_least_the_count():
    assert [power_of_two(count) for count in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
