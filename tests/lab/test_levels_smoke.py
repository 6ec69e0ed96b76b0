"""Level 1 against servers that fail one of its checks."""

import pytest

from firesteel.lab.api import Api
from firesteel.lab.footprint import Footprint
from firesteel.lab.levels import Checks
from firesteel.lab.levels_smoke import check_repeats, check_smoke, random_prompt
from firesteel.lab.order import Order
from firesteel.lab.supervisor import Supervised
from firesteel.lab.target import Target


@pytest.fixture
def target(fake, tmp_path):
    with Supervised(fake(), tmp_path) as server:
        found = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="fake", server=server)
        found.greet()
        yield found


def test_every_check_passes_on_a_server_that_behaves(target):
    found = check_smoke(target, Order(quick=True))
    assert found.passed and [row["check"] for row in found.figures["checks"]] == [
        "boot", "answer", "parallel", "long prompt", "finite", "memory",
    ]  # fmt: skip
    assert target.api.model == "fake" and target.max_context == 8192 and found.figures["long_prompt_tokens"] == 4096
    assert "Paris" in found.figures["answer"]


def test_long_prompt_is_as_long_as_a_small_model_takes(target):
    target.max_context = 1000
    assert check_smoke(target, Order(quick=True)).figures["long_prompt_tokens"] == 936


def test_growth_of_a_gigabyte_after_the_first_repeat_fails(target, monkeypatch):
    looks = iter([Footprint(resident=size, gpu=None, regions=()) for size in (3 * 10**9, 5 * 10**9)])
    monkeypatch.setattr(Target, "footprint", lambda self: next(looks))
    checks = Checks()
    check_repeats(target, checks, seed=1)
    assert checks.figures["growth_bytes"] == 2 * 10**9 and not checks.rows[0]["passed"]


def test_step_that_runs_is_known_to_the_supervisor(target):
    told = []
    target.tell = told.append
    with target.step("counting"):
        assert target.server.step == "counting" and told == ["counting"]


def test_prompts_repeat_with_their_seed_and_hold_plain_tokens():
    assert random_prompt(3, 50) == random_prompt(3, 50) != random_prompt(4, 50)
    assert len(random_prompt(3, 50)) == 50 and all(256 <= token < 1000 for token in random_prompt(3, 50))
