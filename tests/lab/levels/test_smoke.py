"""Level 1 against servers that fail one of its checks."""

import pytest

from firesteel.lab.client.api import Api
from firesteel.lab.level import Checks
from firesteel.lab.levels.smoke import check_finite, check_repeats, check_smoke, list_logprobs, random_prompt
from firesteel.lab.memory.footprint import Footprint
from firesteel.lab.servers.supervisor import Supervised
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import Order


@pytest.fixture
def target(request, fake, tmp_path):
    with Supervised(fake(getattr(request, "param", "well")), tmp_path) as server:
        found = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="fake", server=server)
        found.greet()
        yield found


def test_every_check_passes_on_a_server_that_behaves(target):
    found = check_smoke(target, Order(quick=True))
    assert found.passed and [row["check"] for row in found.figures["checks"]] == [
        "boot", "answer", "parallel", "long prompt", "finite", "memory",
    ]  # fmt: skip
    assert target.api.model == "fake" and target.max_context == 8192 and found.figures["long_prompt_tokens"] == 4096
    assert "Paris" in found.figures["answer"] and found.figures["logprobs"] == 66  # all but the first


@pytest.mark.parametrize("target", ["speaks-llamacpp"], indirect=True)
def test_likelihoods_are_read_as_llamacpp_writes_them(target):
    found = check_smoke(target, Order(quick=True))
    assert found.passed and target.max_context == 8192 and found.figures["logprobs"] == 3
    assert "3 likelihoods of the answer are finite" in found.reason


@pytest.mark.parametrize(
    ("choice", "listed"),
    [
        ({"logprobs": {"token_logprobs": [None, -1.0]}}, [None, -1.0]),
        ({"logprobs": {"content": [{"token": "a", "logprob": -2.0}, {"logprob": None}]}}, [-2.0, None]),
        ({"logprobs": {"token_logprobs": None, "content": None}}, []),
        ({"logprobs": None}, []),
        ({}, []),
    ],
)
def test_every_dialect_of_likelihoods_is_read(choice, listed):
    assert list_logprobs(choice) == listed


def test_first_likelihood_of_an_answer_that_is_no_number_is_not_passed_over(target, monkeypatch):
    """Only a prompt's first token has none."""
    answer = {"choices": [{"text": "", "logprobs": {"content": [{"logprob": None}, {"logprob": -1.0}]}}]}
    monkeypatch.setattr(Api, "complete", lambda self, prompt, **fields: answer)
    checks = Checks()
    check_finite(target, checks, seed=1)
    assert not checks.rows[0]["passed"] and "NaN or Inf" in checks.rows[0]["words"]


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
