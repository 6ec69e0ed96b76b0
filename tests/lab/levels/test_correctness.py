"""Level 2: a server that computes something else than the reference fails."""

import threading
from pathlib import Path

import pytest
import torch

from firesteel.lab.levels import correctness as levels_correctness
from firesteel.lab.levels.correctness import OWN_SETTINGS, check_correctness
from firesteel.lab.reference.reference import LocalReference, find_reference
from firesteel.lab.reference.texts import read_prompts, read_texts
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from firesteel.llm import LLM
from firesteel.types import SamplingParams
from tests.lab.contexts import make_context


class LocalApi:
    """Answers as a server would, with a model in this process."""

    url, model = "local", "kindling"

    def __init__(self, **settings):
        self.llm = LLM("kindling", device="cpu", kv_cache_gib=0.25, **settings)
        self.noise = 0.0
        self.wrong_tokens = False
        self.lock = threading.Lock()

    def complete(self, prompt, *, max_tokens, temperature=0.0, seed=0, ignore_eos=False, echo=False, **fields):
        with self.lock:
            return self.answer(prompt, echo, max_tokens, temperature, seed, ignore_eos)

    def answer(self, prompt, echo, max_tokens, temperature, seed, ignore_eos):
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=ignore_eos)
        [completion] = self.llm.generate([prompt], params, progress=False)
        token_ids = [token + self.wrong_tokens for token in completion.token_ids]
        choice = {"text": completion.text, "token_ids": token_ids}
        if echo:
            rows = self.llm.logits(prompt)[:-1].log_softmax(-1)
            logprobs = rows.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0] - self.noise
            choice["logprobs"] = {"token_logprobs": [None, *logprobs.tolist(), -1.0]}
        return {"choices": [choice]}

    def get(self, path):
        return {"device": "CPU", "ran": []}


@pytest.fixture(scope="module")
def local():
    return LocalApi()


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.setattr(levels_correctness, "read_texts", lambda encoder, count: read_texts(encoder, 2))
    monkeypatch.setattr(levels_correctness, "read_prompts", lambda encoder, count: read_prompts(encoder, 2))
    monkeypatch.setattr(levels_correctness, "check_coherence", lambda target, checks: None)  # it cannot chat
    monkeypatch.setattr(levels_correctness, "CONTINUED", 12)

    def run(api, *, model="kindling", **fields):
        target = Target(api=api, kind="firesteel", folder=Path(), model=model)
        return check_correctness(make_context(target, LabSpec(quick=True, **fields)))

    return run


def failed(result):
    return {row.check for row in result.checks if row.verdict is Verdict.FAILED}


@pytest.mark.slow
def test_same_model_agrees_in_perplexity_tokens_and_sinks(judge, local):
    result = judge(local)
    assert result.passed, result.reason
    assert abs(result.facts["perplexity_change"]) < 1e-5 and result.facts["worst_logprob_error"] < 1e-3
    assert result.facts["tokens_equal"] == result.facts["tokens_compared"] == 2 * 12
    assert result.facts["perplexity_without_sinks"] > 1.2 * result.facts["perplexity_with_sinks"]


@pytest.mark.slow
def test_model_without_sinks_fails(judge):
    assert {"perplexity", "tokens", "sinks"} <= failed(judge(LocalApi(sinks=False)))


@pytest.mark.slow
def test_log_probabilities_that_are_one_percent_off_fail(judge, local, monkeypatch):
    monkeypatch.setattr(local, "noise", 0.01)
    result = judge(local)
    assert failed(result) == {"perplexity"}
    assert [row.cure for row in result.checks if row.cure] == [OWN_SETTINGS]


@pytest.mark.slow
def test_nan_is_reported(judge, local, monkeypatch):
    monkeypatch.setattr(local, "noise", float("nan"))
    assert "NaN or Inf" in judge(local).reason


@pytest.mark.slow
def test_wrong_tokens_fail_where_the_reference_is_decided(judge, local, monkeypatch):
    monkeypatch.setattr(local, "wrong_tokens", True)
    result = judge(local)
    assert "tokens" in failed(result) and "margin is" in result.reason


def test_model_that_is_not_on_this_machine_is_not_judged(judge, local):
    result = judge(local, model="some/other-model")
    assert result.verdict is Verdict.UNPROVEN and result.facts["reference"] is None
    assert (
        "not judged: some/other-model is not a checkpoint" in result.reason and "--reference-url" in result.reason
    )


def test_seed_that_gives_two_texts_fails_even_without_a_reference(judge, local, monkeypatch):
    texts = iter("ab")
    monkeypatch.setattr(local, "complete", lambda prompt, **fields: {"choices": [{"text": next(texts)}]})
    result = judge(local, model="some/other-model")
    assert result.failed and "two different texts" in result.reason


def test_reference_of_kindling_is_computed_locally():
    reference, why_none = find_reference("kindling", "")
    assert isinstance(reference, LocalReference) and not why_none
    assert reference.margin([1, 2, 3]) >= 0
