"""The chance of a drafted token, by its position."""

import random

import pytest

from firesteel.engine.speculate.acceptance import FIRST_CHANCE, Acceptance


def test_first_chances_are_those_of_all_requests():
    assert Acceptance().list_chances(2) == [FIRST_CHANCE] * 2
    overall = Acceptance()
    for accepted in [3, 1, 0, 2] * 50:
        overall.add(3, accepted)
    own = Acceptance(overall)
    assert own.list_chances(5) == overall.list_chances(5)
    overall.add(3, 0)
    assert own.list_chances(5) == overall.list_chances(5), "also later"
    assert own.chances(2) == [
        own.list_chances(1)[0],
        pytest.approx(own.list_chances(2)[0] * own.list_chances(2)[1]),
    ]


def test_chances_approach_the_share_of_right_drafts():
    rng, acceptance = random.Random(1), Acceptance()
    for _ in range(2000):
        accepted = 0
        while accepted < 3 and rng.random() < (0.9, 0.5, 0.2)[accepted]:
            accepted += 1
        acceptance.add(3, accepted)
    assert acceptance.list_chances(3) == pytest.approx([0.9, 0.5, 0.2], abs=0.12)


def test_token_after_a_wrong_one_is_not_counted():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.add(3, 0)
    first, *others = acceptance.list_chances(3)
    assert first < 0.2 and others == [first, first], "they are expected to be as good as the one before them"


def test_position_that_was_not_tried_lately_is_expected_to_be_good_again():
    """Some bad drafts at the start kept later tokens from ever being drafted."""
    acceptance = Acceptance()
    for _ in range(10):
        acceptance.add(2, 1)
    assert acceptance.list_chances(2)[1] < 0.5
    for _ in range(200):
        acceptance.add(1, 1)
    assert acceptance.list_chances(2)[1] > 0.9


def test_recent_drafts_count_more():
    acceptance = Acceptance()
    for accepted in [0] * 500 + [1] * 300:
        acceptance.add(1, accepted)
    assert acceptance.list_chances(1)[0] > 0.9
