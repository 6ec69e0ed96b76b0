from dataclasses import dataclass

import pytest
import torch

from firesteel.kernels.op.tolerance import Tolerance, assert_close, bf16, exact, fp32

ONES = torch.ones(100)


@pytest.mark.parametrize(
    ("actual", "complaint"),
    [
        (ONES * 1.1, "worst"),
        (ONES.index_fill(0, torch.tensor([7]), 1.02), "worst"),
        (ONES[:99], "shape"),
        (ONES.bfloat16(), "bfloat16"),
        (ONES.index_fill(0, torch.tensor([7]), float("nan")), "worst nan"),
        ((ONES, ONES), "2 results"),
    ],
)
def test_differences_are_found(actual, complaint):
    with pytest.raises(AssertionError, match=complaint):
        assert_close(actual=actual, expected=ONES, tolerance=fp32(worst=1e-2, rms=1e-2, why="test"))


def test_small_errors_everywhere_break_the_rms_bound_alone():
    with pytest.raises(AssertionError, match="rms"):
        assert_close(actual=ONES * 1.005, expected=ONES, tolerance=fp32(worst=1e-2, rms=1e-3, why="test"))


def test_one_bf16_rounding_is_within_one_ulp_and_two_are_not_exact():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    assert_close(actual=x.bfloat16().float(), expected=x, tolerance=bf16(ulps=1, why="test"))
    with pytest.raises(AssertionError):
        assert_close(actual=x.bfloat16().float(), expected=x, tolerance=exact(why="test"))


def test_infinities_must_be_in_the_same_places():
    expected = torch.tensor([1.0, float("inf"), float("nan")])
    assert_close(actual=expected.clone(), expected=expected, tolerance=exact(why="test"))
    with pytest.raises(AssertionError, match="non-finite"):
        assert_close(
            actual=torch.tensor([1.0, -float("inf"), float("nan")]), expected=expected, tolerance=exact(why="test")
        )


def test_neighbours_in_bf16_are_one_ulp_apart_even_just_above_a_power_of_two():
    one, next_to_it = torch.tensor([1.0, 0.1]), torch.tensor([1.0 + 2.0**-7, 0.1])
    loose = Tolerance(worst=bf16(ulps=1, why="test").worst, rms=1.0, why="test")
    assert_close(actual=next_to_it, expected=one, tolerance=loose)
    with pytest.raises(AssertionError):
        assert_close(actual=next_to_it + 2.0**-7, expected=one, tolerance=loose)


@dataclass
class Coded:
    values: torch.Tensor
    is_rounded: bool


def test_dataclass_may_have_its_own_bounds_and_other_results_keep_theirs():
    loose = Tolerance(worst=0.5, rms=0.5, why="codes")
    tolerance = bf16(
        ulps=1, why="test", own=lambda result: loose if isinstance(result, Coded) and result.is_rounded else None
    )
    for is_rounded in (True, False):
        expected = (ONES, Coded(ONES, is_rounded))
        with pytest.raises(AssertionError, match="result 0: worst"):
            assert_close(actual=(ONES * 1.1, Coded(ONES, is_rounded)), expected=expected, tolerance=tolerance)
    actual = (ONES, Coded(ONES * 1.1, True))
    assert_close(actual=actual, expected=(ONES, Coded(ONES, True)), tolerance=tolerance)
    with pytest.raises(AssertionError, match="result 1: worst"):
        assert_close(actual=actual, expected=(ONES, Coded(ONES, False)), tolerance=tolerance)


def test_tensor_may_have_its_own_bounds():
    loose = Tolerance(worst=0.5, rms=0.5, why="codes")
    tolerance = bf16(ulps=1, why="test", own=lambda result: loose if result.dtype == torch.float16 else None)
    expected = (ONES, ONES.half())
    assert_close(actual=(ONES, ONES.half() * 1.1), expected=expected, tolerance=tolerance)
    with pytest.raises(AssertionError, match="result 0: worst"):
        assert_close(actual=(ONES * 1.1, ONES.half()), expected=expected, tolerance=tolerance)
    with pytest.raises(AssertionError, match=r"result 1: worst .* codes"):
        assert_close(actual=(ONES, ONES.half() * 2), expected=expected, tolerance=tolerance)


def test_largest_errors_of_all_results_are_returned():
    expected = (ONES, 2 * ONES)
    errors = assert_close(
        actual=(ONES, 2 * ONES * 1.25), expected=expected, tolerance=Tolerance(worst=1.0, rms=1.0, why="test")
    )
    assert errors == pytest.approx((0.25, 0.25))
    assert assert_close(actual=expected, expected=expected, tolerance=exact(why="test")) == (0.0, 0.0)
