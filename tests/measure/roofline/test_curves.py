"""Costs of larger batches and of drafted tokens, checked against figures computed by hand."""

import pytest

from firesteel.measure.roofline.curves import (
    Speculation,
    batch_curve,
    best_draft,
    draft_curve,
    shared_experts,
    speculate,
)
from firesteel.measure.roofline.roofline import RooflineError, StepShape
from firesteel.model.spec import PRESETS

BIG = PRESETS["gpt-oss-120b"]


@pytest.mark.parametrize(("tokens", "experts"), [(1, 4.0), (2, 4 * 1.97), (4, 4 * 3.82)])
def test_independent_tokens_choose_the_expected_number_of_experts(tokens, experts):
    assert shared_experts(BIG, tokens) == pytest.approx(experts, rel=0.01)


def test_full_overlap_leaves_the_experts_of_one_token():
    assert shared_experts(BIG, 8, 1.0) == 4.0
    assert 4.0 < shared_experts(BIG, 8, 0.5) < shared_experts(BIG, 8, 0.0)


def test_batch_reads_less_per_token_and_gives_more_in_total():
    points = batch_curve(BIG, StepShape(), 4645.0)
    moved, together, alone = zip(
        *((point.bytes_a_token, point.ceiling_tok_s, point.request_tok_s) for point in points), strict=True
    )
    assert list(moved) == sorted(moved, reverse=True)
    assert list(together) == sorted(together) and list(alone) == sorted(alone, reverse=True)
    assert points[0].ceiling_tok_s == points[0].request_tok_s == pytest.approx(928, rel=0.01)


def test_cost_of_drafts_is_that_of_their_experts():
    """Two tokens cost 1.37 plain steps and four 2.07 with dense layers in bf16, 2.95 with all in MXFP4."""
    points = draft_curve(BIG, StepShape(), 3)
    assert points[0].cost == pytest.approx(1.37, abs=0.01) and points[2].cost == pytest.approx(2.07, abs=0.01)
    assert draft_curve(BIG, StepShape(dense="mxfp4"), 3)[2].cost == pytest.approx(2.95, abs=0.01)


def test_length_of_2_7_gains_with_bf16_and_loses_with_mxfp4():
    acceptance = 0.78  # 1 + 0.78 + 0.78^2 + 0.78^3 = 2.86
    assert draft_curve(BIG, StepShape(), 3, acceptance=acceptance)[2].speedup > 1.3
    assert draft_curve(BIG, StepShape(dense="mxfp4"), 3, acceptance=acceptance)[2].speedup < 1
    assert best_draft(draft_curve(BIG, StepShape(dense="mxfp4"), 3, acceptance=0.3)) is None


def test_drafts_that_read_bytes_gain_later():
    free, dear = (draft_curve(BIG, StepShape(), 2, draft_bytes=draft_bytes)[1] for draft_bytes in (0.0, 0.5e9))
    assert dear.break_even_acceptance > free.break_even_acceptance
    assert draft_curve(BIG, StepShape(), 1, draft_bytes=9e9)[0].break_even_acceptance is None


def test_accepting_2_7_of_4_gains_30_percent_with_bf16_and_loses_with_mxfp4():
    assert round(2.7 / speculate(BIG, StepShape(), 3).cost, 2) == 1.30
    assert 2.7 / speculate(BIG, StepShape(dense="mxfp4"), 3).cost < 1


def test_break_even_has_the_speed_of_plain_decoding():
    speculation = speculate(BIG, StepShape(), 3)
    assert speculation.speedup(speculation.break_even()) == pytest.approx(1)
    assert speculation.speedup(speculation.break_even() - 0.01) < 1 < speculation.speedup(1.0)
    assert speculation.length(0) == 1 and speculation.length(1) == 4 and speculation.length(0.5) == 1.875


def test_drafts_can_cost_more_than_they_can_gain():
    dear = speculate(BIG, StepShape(dense="mxfp4"), 3, draft_bytes=4e9)
    assert dear.cost == pytest.approx(speculate(BIG, StepShape(dense="mxfp4"), 3).cost + 4e9 / 2.75e9, rel=1e-3)
    assert dear.break_even() is None
    assert Speculation(drafted=3, cost=4.0).break_even() == pytest.approx(1)


def test_measured_overlap_of_experts_lowers_the_cost():
    step = StepShape(dense="mxfp4", distinct_experts=4)
    assert speculate(BIG, step, 3, verify_experts=4).cost == pytest.approx(1, rel=1e-3)
    assert 1.5 < speculate(BIG, step, 3, verify_experts=8).cost < speculate(BIG, StepShape(dense="mxfp4"), 3).cost


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: speculate(BIG, StepShape(), 0), "drafted = 0: must be at least 1"),
        (
            lambda: speculate(BIG, StepShape(distinct_experts=5), 1),
            "of the plain and of the verifying step, or of neither",
        ),
        (
            lambda: speculate(BIG, StepShape(), 1, verify_experts=5),
            "of the plain and of the verifying step, or of neither",
        ),
        (lambda: speculate(BIG, StepShape(), 1).length(1.1), "acceptance = 1.1: must lie between 0 and 1"),
    ],
)
def test_impossible_speculation_is_an_error_that_names_the_value(make, message):
    with pytest.raises(RooflineError, match=message):
        make()
