"""A server is recorded once; level 2 compares later servers with the file as with the server itself."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from firesteel.atomic import write_atomically
from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.levels import correctness as levels_correctness
from firesteel.lab.levels.correctness import check_correctness
from firesteel.lab.reference import recording
from firesteel.lab.reference.recorded import with_hashes
from firesteel.lab.reference.recording import NotRecordable, record_reference
from firesteel.lab.reference.texts import read_prompts, read_texts
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab import toy_server as toys
from tests.lab.contexts import make_context

Toy = toys.Toy


@pytest.fixture
def target_of(serving):
    @contextmanager
    def serve(toy, model="toy"):
        with serving(toys.answers_of(toy)) as url:
            target = Target(api=Api.of(url), kind="other", folder=Path(), model=model)
            target.identify()
            yield target

    return serve


@pytest.fixture
def record(monkeypatch, target_of, tmp_path):
    """record(toy): the path of its recorded reference, of few texts and prompts."""
    monkeypatch.setattr(recording, "read_texts", lambda encoder, count: read_texts(encoder, 2))
    monkeypatch.setattr(recording, "read_prompts", lambda encoder, count: read_prompts(encoder, 3))

    def run(toy):
        with target_of(toy) as target:
            reference, coherence = record_reference(target)
        assert coherence.verdict is Verdict.FAILED and reference.coherence == "failed"  # its answers are noise
        path = tmp_path / "ref.json"
        write_atomically(path, with_hashes(reference))
        return path

    return run


@pytest.fixture
def judge(monkeypatch, target_of):
    monkeypatch.setattr(levels_correctness, "check_coherence", lambda target, checks: None)  # the toy talks noise

    def run(toy, path, model="toy"):
        with target_of(toy, model) as target:
            target.api = target.api if model == "toy" else Api(url=target.api.url, model=model)
            return check_correctness(make_context(target, LabSpec(quick=True, reference=str(path))))

    return run


def failed(result):
    return {row.check for row in result.checks if row.verdict is Verdict.FAILED}


def test_same_model_agrees_with_what_was_recorded(record, judge):
    result = judge(Toy(), record(Toy()))
    assert result.passed, result.reason
    assert result.facts["tokens_equal"] == result.facts["tokens_compared"] == 3 * 32
    assert abs(result.facts["perplexity_change"]) < 1e-6 and "toy as recorded on" in result.facts["reference"]
    assert "not coherent" in result.facts["reference"]


def test_another_model_fails_by_the_recorded_margins(record, judge):
    result = judge(Toy(seed=1), record(Toy()))
    assert failed(result) == {"perplexity", "tokens"} and "margin is" in result.reason


def test_token_may_differ_where_the_recorded_margin_is_small(record, judge):
    served, reference = toys.nearly_equal_toys()
    result = judge(served, record(reference))
    assert result.passed, result.reason
    assert result.facts["tokens_equal"] < result.facts["tokens_compared"]


def test_without_recorded_margins_every_difference_counts(record, judge):
    served, reference = Toy(), Toy(top=False)
    for token in range(toys.VOCABULARY):
        served.near_tie(token)
    assert "tokens" in failed(judge(served, record(reference)))


def test_later_server_needs_no_tokenizer(record, judge):
    result = judge(Toy(field=""), record(Toy()))
    assert result.passed, result.reason


def test_reference_of_another_model_leaves_the_level_unjudged(record, judge):
    result = judge(Toy(), record(Toy()), model="other")
    assert result.verdict is Verdict.UNPROVEN
    assert "the reference is of toy, this server has other" in result.reason and "record it again" in result.reason


@pytest.mark.parametrize("lacks", ["logprobs", "token_ids"])
def test_server_without_a_needed_feature_is_not_recorded(record, lacks):
    with pytest.raises((NotRecordable, RequestFailed), match=r"log-probabilities|token_ids"):
        record(Toy(lacks=lacks))


def test_server_without_a_tokenizer_is_not_recorded(target_of):
    with target_of(Toy(field="")) as target, pytest.raises(NotRecordable, match=r"/tokenize.*--model"):
        record_reference(target)


def test_nan_is_not_recorded(record):
    toy = Toy()
    toy.table[:] = float("nan")
    with pytest.raises(NotRecordable, match="NaN or Inf: this server is broken"):
        record(toy)
