"""Level 1 with servers that fail one of its checks."""

import pytest

from firesteel.lab.client.api import Api
from firesteel.lab.level import SMOKE
from firesteel.lab.level_result import Checks
from firesteel.lab.levels.smoke import check_finite, check_repeats, check_smoke, list_logprobs, random_prompt
from firesteel.lab.memory.footprint import Footprint
from firesteel.lab.servers.supervisor import SupervisedServer
from firesteel.lab.servers.target import Target
from firesteel.lab.verdict import Verdict
from tests.lab.contexts import make_context


@pytest.fixture
def target(request, fake, tmp_path):
    with SupervisedServer(fake(getattr(request, "param", "well")), tmp_path) as server:
        target = Target(api=Api.of(server.command.url), kind="other", folder=tmp_path, model="fake", server=server)
        target.identify()
        yield target


def test_every_check_passes_with_a_healthy_server(target):
    result = check_smoke(make_context(target))
    assert result.passed and [row.check for row in result.checks] == [
        "boot",
        "answer",
        "parallel",
        "long prompt",
        "finite",
        "memory",
    ]
    assert target.api.model == "fake" and target.max_context == 8192 and result.facts["long_prompt_tokens"] == 4096
    assert "Paris" in result.facts["answer"] and result.facts["logprobs"] == 66  # all but the first


@pytest.mark.parametrize("target", ["speaks-llamacpp"], indirect=True)
def test_log_probabilities_are_read_in_the_format_of_llamacpp(target):
    result = check_smoke(make_context(target))
    assert result.passed and target.max_context == 8192 and result.facts["logprobs"] == 3
    assert "3 log-probabilities of the answer are finite" in result.reason


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
def test_every_format_of_log_probabilities_is_read(choice, listed):
    assert list_logprobs(choice) == listed


def test_nan_at_the_start_of_an_answer_fails(target, monkeypatch):
    """Only the first token of a prompt may lack a log-probability."""
    answer = {"choices": [{"text": "", "logprobs": {"content": [{"logprob": None}, {"logprob": -1.0}]}}]}
    monkeypatch.setattr(Api, "complete", lambda self, prompt, **fields: answer)
    checks = Checks(SMOKE)
    check_finite(target, checks, seed=1)
    assert not checks.rows[0].passed and "NaN or Inf" in checks.rows[0].words


def test_server_without_log_probabilities_is_not_judged_by_them(target, monkeypatch):
    """It failed, though nothing was seen that is wrong."""
    monkeypatch.setattr(
        Api, "complete", lambda self, prompt, **fields: {"choices": [{"text": "", "logprobs": None}]}
    )
    checks = Checks(SMOKE)
    check_finite(target, checks, seed=1)
    assert checks.rows[0].verdict is Verdict.UNPROVEN and "no log-probabilities" in checks.rows[0].words


def test_long_prompt_is_limited_by_the_model(target):
    target.max_context = 1000
    assert check_smoke(make_context(target)).facts["long_prompt_tokens"] == 936


def test_growth_of_a_gigabyte_after_the_first_repeat_fails(target, monkeypatch):
    footprints = iter([Footprint(resident=size, gpu=None, regions=()) for size in (3 * 10**9, 5 * 10**9)])
    monkeypatch.setattr(Target, "footprint", lambda self: next(footprints))
    checks = Checks(SMOKE)
    check_repeats(target, checks, seed=1)
    assert checks.facts["growth_bytes"] == 2 * 10**9 and not checks.rows[0].passed


def test_supervisor_knows_the_current_step(target):
    progress = []
    target.on_progress = progress.append
    with target.step("counting"):
        assert target.server.step == "counting" and progress == ["counting"]


def test_prompts_repeat_with_their_seed_and_hold_plain_tokens():
    assert random_prompt(3, 50) == random_prompt(3, 50) != random_prompt(4, 50)
    assert len(random_prompt(3, 50)) == 50 and all(256 <= token < 1000 for token in random_prompt(3, 50))
