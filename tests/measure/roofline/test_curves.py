"""Costs of larger batches and of drafted tokens, held to figures worked out by hand."""

import pytest

from firesteel.measure.roofline.curves import batch_curve, best_draft, draft_curve, shared_experts
from firesteel.measure.roofline.roofline import StepShape
from firesteel.model.spec import PRESETS

BIG = PRESETS["gpt-oss-120b"]


@pytest.mark.parametrize(("tokens", "experts"), [(1, 4.0), (2, 4 * 1.97), (4, 4 * 3.82)])
def test_independent_tokens_meet_the_experts_that_chance_gives(tokens, experts):
    assert shared_experts(BIG, tokens) == pytest.approx(experts, rel=0.01)


def test_overlap_goes_from_chance_to_one_tokens_experts():
    assert shared_experts(BIG, 8, 1.0) == 4.0
    assert 4.0 < shared_experts(BIG, 8, 0.5) < shared_experts(BIG, 8, 0.0)


def test_a_batch_reads_less_a_token_and_gives_more_in_all():
    points = batch_curve(BIG, StepShape(), 4645.0)
    moved, together, alone = zip(
        *((one.bytes_a_token, one.ceiling_tok_s, one.request_tok_s) for one in points), strict=True
    )
    assert list(moved) == sorted(moved, reverse=True)
    assert list(together) == sorted(together) and list(alone) == sorted(alone, reverse=True)
    assert points[0].ceiling_tok_s == points[0].request_tok_s == pytest.approx(928, rel=0.01)


def test_drafts_cost_what_the_experts_they_meet_cost():
    """1.37 plain steps for two tokens and 2.07 for four with dense layers in BF16, 2.95 with all in MXFP4."""
    points = draft_curve(BIG, StepShape(), 3)
    assert points[0].cost == pytest.approx(1.37, abs=0.01) and points[2].cost == pytest.approx(2.07, abs=0.01)
    assert draft_curve(BIG, StepShape(dense="mxfp4"), 3)[2].cost == pytest.approx(2.95, abs=0.01)


def test_a_length_of_2_7_gains_with_bf16_and_loses_with_mxfp4():
    acceptance = 0.78  # 1 + 0.78 + 0.78^2 + 0.78^3 = 2.86
    assert draft_curve(BIG, StepShape(), 3, acceptance=acceptance)[2].speedup > 1.3
    assert draft_curve(BIG, StepShape(dense="mxfp4"), 3, acceptance=acceptance)[2].speedup < 1
    assert best_draft(draft_curve(BIG, StepShape(dense="mxfp4"), 3, acceptance=0.3)) is None


def test_drafts_that_cost_bytes_gain_later():
    free, dear = (draft_curve(BIG, StepShape(), 2, draft_bytes=one)[1] for one in (0.0, 0.5e9))
    assert dear.break_even_acceptance > free.break_even_acceptance
    assert draft_curve(BIG, StepShape(), 1, draft_bytes=9e9)[0].break_even_acceptance is None
