"""The random stream: its bits, its distribution, and that every bit of the seed counts."""

import math

import pytest
import torch

from firesteel.kernels.noise import gumbel_noise, stream_key, token_steps

CPU = torch.device("cpu")
MASK = 2**64 - 1


def noise(seed, position, size):
    return gumbel_noise(torch.tensor([stream_key(seed, position)]), token_steps(size, CPU))[0]


def splitmix64(state):
    """Returns the next number of the published generator, in unsigned integers, from an advanced state."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)


def test_published_generator_is_checked_against_a_published_value():
    assert splitmix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # first output of seed 0


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 5), (-1, 131072), (2**63 + 12345, 7)])
def test_noise_is_splitmix64_of_seed_position_and_token(seed, position):
    key = splitmix64((splitmix64((seed + 0x9E3779B97F4A7C15) & MASK) + position) & MASK)
    assert stream_key(seed, position) & MASK == key
    for token, value in enumerate(noise(seed, position, 1000).tolist()):
        uniform = ((splitmix64((key + (token + 1) * 0x9E3779B97F4A7C15) & MASK) >> 11) + 0.5) / 2**53
        assert value == pytest.approx(-math.log(-math.log1p(-uniform)), rel=1e-5, abs=1e-5)


def test_exponentials_of_the_noise_have_the_right_quantiles():
    values = noise(3, 1, 400_000).double().neg().exp().sort().values
    for quantile in (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999):
        below = (values < -math.log1p(-quantile)).double().mean().item()
        assert abs(below - quantile) < 5 * (quantile * (1 - quantile) / len(values)) ** 0.5


def test_noise_of_other_positions_and_seeds_is_uncorrelated():
    rows = torch.stack(
        [noise(*key, 100_000) for key in ((0, 0), (0, 1), (1, 0), (1 << 32, 0), (1 << 63, 0), (0, 1 << 16))]
    )
    correlation = rows.double().corrcoef() - torch.eye(len(rows))
    assert correlation.abs().max() < 5 / 100_000**0.5


@pytest.mark.parametrize("bit", range(64))
def test_every_bit_of_the_seed_counts(bit):
    assert not torch.equal(noise(12345, 9, 8), noise(12345 ^ (1 << bit), 9, 8))


def test_seed_and_position_are_not_exchangeable():
    assert stream_key(3, 5) != stream_key(5, 3)
    assert stream_key(3, 5) != stream_key(4, 4)


def test_noise_is_finite_at_both_ends_of_the_uniform(monkeypatch):
    ends = torch.tensor([[0, 1, 2**53 - 1]])
    monkeypatch.setattr("firesteel.kernels.noise._bits", lambda keys, steps: ends)
    low, next_to_low, high = gumbel_noise(torch.zeros(1), torch.zeros(1))[0].tolist()
    assert -3 < high < 0 < next_to_low < low < 38


def test_row_of_noise_does_not_depend_on_the_rows_beside_it():
    keys = torch.tensor([stream_key(seed, 4) for seed in range(7)])
    steps = token_steps(1001, CPU)
    together = gumbel_noise(keys, steps)
    assert all(torch.equal(gumbel_noise(keys[i : i + 1], steps)[0], together[i]) for i in range(7))
