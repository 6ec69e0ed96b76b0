"""Level 2 with another server as the reference."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from firesteel.lab.client.api import Api
from firesteel.lab.levels import correctness as levels_correctness
from firesteel.lab.levels.correctness import check_correctness, count_agreed
from firesteel.lab.reference.texts import read_prompts, read_texts
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab import toy_server as toys
from tests.lab.contexts import make_context

Toy = toys.Toy


class StartedServer:
    """A server that the lab started and must not stop."""

    step = ""

    def check(self):
        pass

    def fail_wrong(self, kind, words):
        return AssertionError(f"the server was stopped: {words}")

    fail_disconnected = fail_silent = fail_wrong
    monitor = SimpleNamespace(complaint=None)


@pytest.fixture
def judge(monkeypatch, serving):
    """judge(served, reference): level 2 of one toy server, with another as the reference."""
    monkeypatch.setattr(levels_correctness, "read_texts", lambda encoder, count: read_texts(encoder, 2))
    monkeypatch.setattr(levels_correctness, "read_prompts", lambda encoder, count: read_prompts(encoder, 3))
    monkeypatch.setattr(levels_correctness, "check_coherence", lambda target, checks: None)  # the toy talks noise

    def run(served, reference):
        with ExitStack() as stack:
            url, reference_url = (stack.enter_context(serving(toys.answers_of(toy))) for toy in (served, reference))
            target = Target(api=Api.of(url), kind="other", folder=Path(), model="toy", server=StartedServer())
            target.identify()
            return check_correctness(make_context(target, LabSpec(quick=True, reference_url=reference_url)))

    return run


def failed(result):
    return {row.check for row in result.checks if row.verdict is Verdict.FAILED}


@pytest.mark.parametrize("field", ["prompt", "content"])
def test_same_model_agrees_and_gets_its_own_tokens(judge, field):
    """Texts were once Kindling's tokens, whatever was served."""
    served, reference = Toy(field=field), Toy()
    result = judge(served, reference)
    assert result.passed, result.reason
    assert result.facts["tokens_equal"] == result.facts["tokens_compared"] == 3 * 32
    assert abs(result.facts["perplexity_change"]) < 1e-6 and "toy at http" in result.facts["reference"]
    assert all(token < 256 for prompt in reference.seen for token in prompt)


def test_another_model_fails(judge):
    result = judge(Toy(seed=1), Toy())
    assert failed(result) == {"perplexity", "tokens"} and "margin is" in result.reason


def test_token_may_differ_where_the_reference_is_nearly_undecided(judge):
    served, reference = toys.nearly_equal_toys()
    result = judge(served, reference)
    assert result.passed, result.reason
    assert result.facts["tokens_equal"] < result.facts["tokens_compared"]


def test_without_ranked_tokens_every_difference_counts(judge):
    served, reference = Toy(), Toy(top=False)
    for token in range(toys.VOCABULARY):
        served.near_tie(token)
    assert "tokens" in failed(judge(served, reference))


@pytest.mark.parametrize("max_requests", [0, 1, 3])
def test_reference_that_goes_away_leaves_the_level_unjudged(judge, max_requests):
    """Its failures were once taken for the server's, which was stopped."""
    result = judge(Toy(), Toy(max_requests=max_requests))
    assert result.verdict is Verdict.UNPROVEN
    assert "not judged: the reference, toy at" in result.reason and "500" in result.reason


def test_reference_that_returns_nan_leaves_the_level_unjudged(judge):
    reference = Toy()
    reference.table[:] = float("nan")
    result = judge(Toy(), reference)
    assert result.verdict is Verdict.UNPROVEN and "the reference" in result.reason and "NaN" in result.reason


def test_check_that_failed_before_the_reference_went_away_still_fails(judge):
    result = judge(Toy(seed=1), Toy(max_requests=2))
    assert result.failed and failed(result) == {"perplexity"}


def test_model_without_a_tokenizer_is_not_judged(judge):
    result = judge(Toy(field=""), Toy())
    assert result.verdict is Verdict.UNPROVEN and "/tokenize" in result.reason


@pytest.mark.parametrize(
    ("lacks", "words"),
    [("logprobs", "not return log-probabilities of a prompt"), ("token_ids", "not return token ids")],
)
def test_server_without_a_needed_feature_is_not_judged_and_not_stopped(judge, lacks, words):
    """llama.cpp was once stopped for it."""
    result = judge(Toy(lacks=lacks), Toy())
    assert result.verdict is Verdict.UNPROVEN and words in result.reason


def test_reference_gets_its_key_from_the_environment(judge, monkeypatch):
    assert "401" in judge(Toy(), Toy(key="k")).reason
    monkeypatch.setenv("LAB_REFERENCE_API_KEY", "k")
    result = judge(Toy(), Toy(key="k"))
    assert result.passed, result.reason


def test_answer_that_ends_early_differs():
    assert count_agreed([], [1, 2]) == 0 and count_agreed([1], [1, 2]) == 1
    assert count_agreed([1, 2, 3], [1, 2]) == 2 and count_agreed([1, 3], [1, 2]) == 1
