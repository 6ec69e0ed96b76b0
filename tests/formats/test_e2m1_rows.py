"""Rows of MXFP4 weights that E4M3 represents exactly."""

import pytest
import torch

from firesteel.formats import e2m1, e2m1_rows, e4m3


def rows(*scales, codes=0x11):
    scales = torch.tensor(scales, dtype=torch.uint8)
    return torch.full((*scales.shape[:-1], scales.shape[-1] * 16), codes, dtype=torch.uint8), scales


def bounds(*scales, codes=0x11):
    return [bound.tolist() for bound in e2m1_rows.find_bounds(*rows(*scales, codes=codes))]


def test_bounds_are_the_smallest_and_the_largest_scale():
    assert bounds([120, 124, 122], [90, 120, 100]) == [[120, 90], [124, 120]]


def test_groups_of_zeros_do_not_count_and_a_row_of_them_has_one():
    codes, scales = rows([0, 120, 124], [0, 0, 3], [0, 255, 120], [0, 161, 120])
    codes[0, :16], codes[1], codes[2, :32], codes[3, :32] = 0x80, 0, 0, 8
    least, most = e2m1_rows.find_bounds(codes, scales)
    assert least.tolist() == [120, 127, 120, 120] and most.tolist() == [124, 127, 255, 161]


@pytest.mark.parametrize(
    ("scales", "in_bf16", "in_e4m3"),
    [
        ((120, 120), True, True),
        ((106, 120), True, True),
        ((105, 120), True, False),
        ((34, 48), True, True),
        ((33, 40), False, False),
        ((146, 160), True, True),
        ((150, 161), False, False),
        ((120, 255), False, False),
    ],
)
def test_rows_fit_up_to_their_limits(scales, in_bf16, in_e4m3):
    found = e2m1_rows.find_bounds(*rows(scales))
    assert bool(e2m1_rows.fits_bf16(*found)) == in_bf16
    assert bool(e2m1_rows.fits_e4m3(*found)) == in_e4m3


def test_the_limits_are_those_of_e4m3():
    """All codes are exact times 2^6 and times 2^-8; at either side one code is not."""
    values = e2m1.decode(torch.arange(16, dtype=torch.uint8))

    def is_exact(exponent):
        scaled = values * 2.0**exponent
        return torch.equal(e4m3.decode(e4m3.encode(scaled)), scaled)

    least = e2m1_rows.MOST_EXPONENT - e2m1_rows.MOST_SPAN
    assert all(is_exact(exponent) for exponent in range(least, e2m1_rows.MOST_EXPONENT + 1))
    assert not is_exact(least - 1) and not is_exact(e2m1_rows.MOST_EXPONENT + 1)
