"""The warning about a drafter that reads the wrong states."""

import pytest

from firesteel.model.drafters.wiring import suspect_wiring


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2])
def test_low_acceptance_of_many_drafts_is_suspect(rate):
    warning = suspect_wiring(rate, 500)
    assert f"{rate:.0%} of 500" in warning and "eagle_aux_hidden_state_layer_ids" in warning


@pytest.mark.parametrize(("rate", "count"), [(0.0, 19), (0.1, 20), (0.2, 99), (0.3, 500), (0.7, 100_000)])
def test_few_drafts_and_usual_acceptance_are_not(rate, count):
    assert suspect_wiring(rate, count) is None


@pytest.mark.parametrize(("rate", "count"), [(0.0, 20), (0.1, 60)])
def test_fewer_drafts_suffice_if_hardly_any_is_right(rate, count):
    """Drafts that do not pay are made once in a hundred steps or less: a hundred of them take long."""
    assert f"only {rate:.0%} of {count}" in suspect_wiring(rate, count)


def test_rate_far_below_the_drafters_own_is_suspect():
    assert "this drafter usually has 70%" in suspect_wiring(0.4, 500, usual=0.7)
    assert suspect_wiring(0.5, 500, usual=0.7) is None and suspect_wiring(0.4, 500) is None
    assert suspect_wiring(0.2, 500, usual=0.3) is not None
