"""Near ties of a router: which differences of expert choices they explain."""

from types import SimpleNamespace

import pytest
import torch

from tests.model.near_ties import compare_choices, gaps_and_movements

TOKENS, EXPERTS, ACTIVE = 400, 32, 4


def a_run(*layers):
    """Returns logits of each layer and the experts that they choose."""
    return SimpleNamespace(logits=layers, routes=[(logits.topk(ACTIVE).indices, None) for logits in layers])


def compare(ours, theirs, bounds=(0.05, 0.2)):
    return compare_choices(ours, theirs, num_layers=len(theirs.logits), active=ACTIVE, bounds=bounds)


@pytest.fixture
def logits():
    return torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(1))


def noise(deviation):
    return deviation * torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(2))


def test_gap_is_that_of_the_last_chosen_and_the_next():
    theirs = torch.tensor([[5.0, 4.0, 3.5, 1.0]])
    gap, moved = gaps_and_movements(theirs + torch.tensor([[1.0, -1.0, 1.0, -1.0]]), theirs, 2)
    assert gap.item() == 0.5 and moved.item() == pytest.approx(4 * 2**0.5 * (4 / 3) ** 0.5)


def test_rounding_explains_different_choices(logits):
    agree, explained = compare(a_run(logits + noise(0.01)), a_run(logits))
    assert 0.8 < agree < 1 and explained == 1


def test_a_movement_beyond_the_bound_explains_nothing(logits):
    """The bound holds however far all logits moved."""
    _, explained = compare(a_run(logits + noise(1.0)), a_run(logits))
    assert explained < 0.9


def test_wrong_experts_of_the_right_logits_are_not_explained(logits):
    wrong = a_run(logits)
    wrong.routes[0] = (logits.topk(ACTIVE + 1).indices[:, 1:], None)
    agree, explained = compare(wrong, a_run(logits))
    assert agree == 0 and explained < 0.5


def test_token_with_different_choices_counts_once_per_step(logits):
    ours, theirs = a_run(*[-logits] * 3), a_run(*[logits] * 3)
    assert compare(ours, theirs, bounds=(0, 0)) == (0, pytest.approx(2 / 3))
    steps = {"num_layers": 1, "active": ACTIVE, "bounds": (0, 0)}
    assert compare_choices(ours, theirs, **steps) == (0, 0)
