"""The chance of a drafted token, by its position."""

import random

import pytest

from firesteel.engine.speculate.acceptance import FIRST_CHANCE, Acceptance


def test_first_chance_is_that_of_the_prior():
    assert Acceptance().chance(0) == FIRST_CHANCE
    assert Acceptance(lambda position: 0.5 / (1 + position)).chances(3) == [0.5, 0.125, pytest.approx(0.5**3 / 6)]


def test_chances_approach_the_share_of_right_drafts():
    rng, acceptance = random.Random(1), Acceptance()
    for _ in range(2000):
        accepted = 0
        while accepted < 3 and rng.random() < (0.9, 0.5, 0.2)[accepted]:
            accepted += 1
        acceptance.add(3, accepted)
    assert [acceptance.chance(position) for position in range(3)] == pytest.approx([0.9, 0.5, 0.2], abs=0.1)


def test_token_after_a_wrong_one_is_not_counted():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.add(3, 0)
    assert acceptance.chance(0) < 0.1
    assert acceptance.chance(1) == acceptance.chance(2) == FIRST_CHANCE


def test_recent_drafts_count_more():
    acceptance = Acceptance()
    for accepted in [0] * 500 + [1] * 300:
        acceptance.add(1, accepted)
    assert acceptance.chance(0) > 0.9
