"""Level 2 against another server: it is held to that one's tokens and likelihoods, and to nothing else."""

import importlib.util
from contextlib import ExitStack
from pathlib import Path

import pytest

from firesteel.lab.client.api import Api
from firesteel.lab.levels import correctness as levels_correctness
from firesteel.lab.levels.correctness import check_correctness, count_agreed
from firesteel.lab.reference.texts import read_prompts, read_texts
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import Order

spec = importlib.util.spec_from_file_location("toy_server", Path(__file__).parents[1] / "toy_server.py")
toys = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toys)
Toy = toys.Toy


class Watched:
    """A server that the lab started, and must not end."""

    step = ""

    def check(self):
        pass

    def fail_wrong(self, kind, words):
        return AssertionError(f"the server was ended: {words}")

    fail_broken = fail_silent = fail_wrong


@pytest.fixture
def judge(monkeypatch, serving):
    """judge(served, reference): level 2 of one toy held to another."""
    monkeypatch.setattr(levels_correctness, "read_texts", lambda encoder, count: read_texts(encoder, 2))
    monkeypatch.setattr(levels_correctness, "read_prompts", lambda encoder, count: read_prompts(encoder, 3))

    def run(served, reference):
        with ExitStack() as stack:
            url, reference_url = (stack.enter_context(serving(toys.answers_of(toy))) for toy in (served, reference))
            target = Target(api=Api.of(url), kind="other", folder=Path(), model="toy", server=Watched())
            target.greet()
            return check_correctness(target, Order(quick=True, reference_url=reference_url))

    return run


def failed(result):
    return {row["check"] for row in result.figures["checks"] if not row["passed"]}


@pytest.mark.parametrize("field", ["prompt", "content"])
def test_the_same_model_agrees_and_is_asked_in_its_own_tokens(judge, field):
    """Texts were once Kindling's tokens, whatever was served."""
    served, reference = Toy(field=field), Toy()
    result = judge(served, reference)
    assert result.passed and result.was_run, result.reason
    assert result.figures["tokens_equal"] == result.figures["tokens_compared"] == 3 * 32
    assert abs(result.figures["perplexity_change"]) < 1e-6 and "toy at http" in result.figures["reference"]
    assert all(token < 256 for prompt in reference.seen for token in prompt)


def test_another_model_is_found_out(judge):
    result = judge(Toy(seed=1), Toy())
    assert failed(result) == {"perplexity", "tokens"} and "sure by" in result.reason


def test_a_token_may_differ_where_the_reference_is_nearly_undecided(judge):
    served, reference = Toy(), Toy()
    for token in range(toys.VOCABULARY):
        served.near_tie(token)
        reference.table[token] = served.table[token].clone()
        first, second = served.table[token].topk(2).indices
        served.table[token, [first, second]] = served.table[token, [second, first]]
    result = judge(served, reference)
    assert result.passed, result.reason
    assert result.figures["tokens_equal"] < result.figures["tokens_compared"]


def test_without_ranked_tokens_every_difference_counts(judge):
    served, reference = Toy(), Toy(top=False)
    for token in range(toys.VOCABULARY):
        served.near_tie(token)
    assert "tokens" in failed(judge(served, reference))


@pytest.mark.parametrize("most_requests", [0, 1, 3])
def test_a_reference_that_goes_away_judges_nobody(judge, most_requests):
    """Its failures were once the server's, which was ended for them."""
    result = judge(Toy(), Toy(most_requests=most_requests))
    assert result.passed and not result.was_run
    assert "not judged: the reference, toy at" in result.reason and "500" in result.reason


def test_a_reference_that_gives_nan_judges_nobody(judge):
    reference = Toy()
    reference.table[:] = float("nan")
    result = judge(Toy(), reference)
    assert not result.was_run and "the reference" in result.reason and "NaN" in result.reason


def test_what_was_wrong_before_the_reference_went_stays_wrong(judge):
    result = judge(Toy(seed=1), Toy(most_requests=2))
    assert not result.passed and result.was_run and failed(result) == {"perplexity"}


def test_without_its_tokens_a_model_is_not_judged(judge):
    result = judge(Toy(field=""), Toy())
    assert result.passed and not result.was_run and "/tokenize" in result.reason


@pytest.mark.parametrize(
    ("lacks", "words"), [("logprobs", "no likelihoods of a prompt"), ("token_ids", "no ids of tokens")]
)
def test_a_server_that_gives_nothing_to_compare_is_not_judged_and_lives(judge, lacks, words):
    """llama.cpp was once ended for it."""
    result = judge(Toy(lacks=lacks), Toy())
    assert result.passed and not result.was_run and words in result.reason


def test_the_reference_gets_its_key_from_the_environment(judge, monkeypatch):
    assert "401" in judge(Toy(), Toy(key="k")).reason
    monkeypatch.setenv("LAB_REFERENCE_API_KEY", "k")
    result = judge(Toy(), Toy(key="k"))
    assert result.passed and result.was_run, result.reason


def test_an_answer_that_ends_early_is_a_difference():
    assert count_agreed([], [1, 2]) == 0 and count_agreed([1], [1, 2]) == 1
    assert count_agreed([1, 2, 3], [1, 2]) == 2 and count_agreed([1, 3], [1, 2]) == 1
