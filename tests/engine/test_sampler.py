"""Draws from logits: their distribution, and what they depend on."""

import itertools

import pytest
import torch

from firesteel.engine.sampler import sample
from firesteel.types import SamplingParams

DRAWS = 4000
LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 1.5, -9.0, 0.0])


def draw(logits, *, temperature=1.0, seed=0, position=0):
    return sample(logits[None], [SamplingParams(temperature=temperature, seed=seed)], [position])[0]


def chi_square(tokens, probabilities):
    """Sum over tokens expected at least 5 times; about its degrees of freedom if the draws are fair."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()
    expected = probabilities.double() * len(tokens)
    often = expected >= 5
    return ((counts - expected)[often].square() / expected[often]).sum().item(), int(often.sum()) - 1


def bound(freedom):
    """Eight standard deviations: fair draws exceed it less than once in 100000, on any machine's random stream."""
    return freedom + 8 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("varied", ["position", "seed"])
def test_draws_are_distributed_as_the_softmax(varied, temperature):
    tokens = [draw(LOGITS, temperature=temperature, **{varied: i}) for i in range(DRAWS)]
    statistic, freedom = chi_square(tokens, (LOGITS / temperature).softmax(-1))
    assert freedom >= 4
    assert statistic < bound(freedom)
    wrong, _ = chi_square(tokens, (LOGITS / temperature * 1.3).softmax(-1))
    assert wrong > bound(freedom), "the bound would not notice a wrong temperature"


def test_draws_of_neighbouring_positions_are_independent():
    tokens = [draw(torch.zeros(4), position=i) for i in range(DRAWS)]
    pairs = [first * 4 + second for first, second in itertools.pairwise(tokens)]
    statistic, freedom = chi_square(pairs, torch.full((16,), 1 / 16))
    assert freedom == 15
    assert statistic < bound(freedom)


def test_draws_of_neighbouring_seeds_are_independent():
    pairs = [draw(torch.zeros(4), seed=i) * 4 + draw(torch.zeros(4), seed=i + 1) for i in range(0, DRAWS, 2)]
    statistic, freedom = chi_square(pairs, torch.full((16,), 1 / 16))
    assert statistic < bound(freedom)


def test_draw_depends_on_seed_and_position_only():
    """Neither on the rows beside it, nor on its place among them, nor on draws made before."""
    wide = torch.zeros(3, 50)
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (5, 6, 7)]
    together = sample(wide, params, [10, 20, 30])
    torch.rand(100)
    assert sample(wide.flip(0), params[::-1], [30, 20, 10]) == together[::-1]
    assert [draw(wide[0], seed=seed, position=at) for seed, at in ((5, 10), (6, 20), (7, 30))] == together


@pytest.mark.parametrize("varied", ["position", "seed"])
def test_other_seed_or_position_gives_other_draws(varied):
    tokens = [draw(torch.zeros(1000), **{varied: i}) for i in range(50)]
    assert len(set(tokens)) > 40


def test_global_random_state_is_left_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    draw(LOGITS)
    assert torch.equal(torch.rand(3), expected)


def test_temperature_0_takes_the_largest_beside_rows_that_draw():
    logits = torch.zeros(3, 20)
    logits[torch.arange(3), torch.tensor([4, 9, 2])] = 1.0
    params = [SamplingParams(), SamplingParams(temperature=50.0, seed=1), SamplingParams()]
    tokens = [sample(logits, params, [position] * 3) for position in range(50)]
    assert {row[0] for row in tokens} == {4} and {row[2] for row in tokens} == {2}
    assert len({row[1] for row in tokens}) > 10


@pytest.mark.parametrize("temperature", [1e-6, 1e-39, 1e-300])
def test_temperature_near_0_takes_the_largest(temperature):
    """Logits divided by the temperature once overflowed, and the first of the infinities won."""
    logits = torch.tensor([3.0, 7.0, 30.0, 29.0])
    assert {draw(logits, temperature=temperature, position=i) for i in range(20)} == {2}


def test_token_of_probability_0_is_never_drawn():
    logits = torch.tensor([0.0, float("-inf"), 0.0])
    assert {draw(logits, temperature=100.0, position=i) for i in range(200)} == {0, 2}


def test_negative_and_huge_seeds_are_seeds():
    for seed in (-1, 2**80 + 1):
        assert 0 <= draw(LOGITS, seed=seed, position=1 << 17) < len(LOGITS)
