"""Several machines: parts of the weights, latency of the link, and agreement with the plugin and with others."""

import pytest

from firesteel.measure.roofline.nodes import EXPERT_SHARE, Link, find_link_seconds, nodes_assumptions, predict_nodes
from firesteel.measure.roofline.roofline import NOT_RUN, RooflineError, StepShape, step_cost
from firesteel.model.spec import PRESETS
from firesteel.vllm_plugin.sharding import cut_intermediate

BIG = PRESETS["gpt-oss-120b"]
COST = step_cost(BIG, StepShape(dense="mxfp4"))
FREE = Link(gb_s=1e9, latency_us=0)


def test_two_sparks_are_predicted():
    two = predict_nodes(BIG, COST, 232, 0.85, 2, Link())
    assert round(two.predicted_tok_s, 1) == 96.0 and round(two.speedup, 2) == 1.34 and two.status == NOT_RUN
    assert round(two.link_ms, 2) == 3.06 and two.step_ms == pytest.approx(1e3 / two.predicted_tok_s)
    shipped = predict_nodes(BIG, step_cost(BIG, StepShape()), 232, 0.85, 2, Link())
    assert round(shipped.predicted_tok_s, 1) == 62.0


def test_cut_is_that_of_the_plugin():
    for nodes, share in EXPERT_SHARE.items():
        assert share == max(cut_intermediate(BIG.intermediate_size, nodes)) / BIG.intermediate_size


def test_free_link_leaves_the_uneven_cut_and_the_whole_router():
    two = predict_nodes(BIG, COST, 232, 0.85, 2, FREE)
    assert 1.85 < two.speedup < 1.95


def test_latency_counts_once_per_sum():
    slow, fast = (find_link_seconds(BIG, 1, 2, Link(latency_us=latency)) for latency in (100, 0))
    assert slow - fast == pytest.approx((2 * 36 + 2) * 100e-6)
    wide, narrow = (find_link_seconds(BIG, 1, 2, Link(gb_s=gb_s, latency_us=0)) for gb_s in (25, 12.5))
    assert narrow == pytest.approx(2 * wide)


def test_published_pair_of_sparks_is_slower_than_the_model():
    """60 tok/s on one Spark became 76 on two; the assumptions say so."""
    two = predict_nodes(BIG, COST, 232, COST.share(60, 232), 2, Link())
    assert round(two.predicted_tok_s) == 84
    assert any("60 tok/s on one Spark 84 on two" in line for line in nodes_assumptions(2, Link()))


@pytest.mark.parametrize("nodes", [1, 3])
def test_other_numbers_of_nodes_are_errors(nodes):
    with pytest.raises(RooflineError, match=f"nodes = {nodes}: must be one of 2, 4"):
        predict_nodes(BIG, COST, 232, 0.85, nodes, Link())


@pytest.mark.parametrize("told", [{"gb_s": 0}, {"latency_us": -1}])
def test_impossible_link_is_an_error(told):
    with pytest.raises(RooflineError, match="must be above 0"):
        Link(**told)
