"""vLLM as the engine of mixed workloads: the same requests, new tokens per step, passes until they settle."""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import vllm_workload
from firesteel.measure.loop.mixed_requests import MixedRequests
from firesteel.measure.loop.workload import Workload
from firesteel.measure.record import Record
from vllm_workload import VllmEngine, has_settled


class EngineOfVllm:
    """Returns all tokens of each request at each step, as vLLM's engine does, and one more token."""

    def __init__(self):
        self.wanted, self.tokens, self.sent = {}, {}, []

    def add_request(self, name, prompt, params):
        self.sent.append((prompt["prompt_token_ids"], params["max_tokens"]))
        self.wanted[name], self.tokens[name] = params["max_tokens"], []

    def step(self):
        return [self.advance(name) for name in list(self.wanted)]

    def advance(self, name):
        self.tokens[name].append(len(self.tokens[name]))
        finished = len(self.tokens[name]) == self.wanted[name]
        if finished:
            del self.wanted[name]
        completion = SimpleNamespace(token_ids=self.tokens[name], finish_reason="length" if finished else None)
        return SimpleNamespace(request_id=name, outputs=[completion], finished=finished, num_cached_tokens=None)


@pytest.fixture
def llm():
    resets = []
    return SimpleNamespace(
        llm_engine=EngineOfVllm(),
        model_config=SimpleNamespace(get_vocab_size=lambda: 50),
        resets=resets,
        reset_prefix_cache=lambda: resets.append(1) or True,
    )


def test_requests_and_tokens_pass_unchanged(llm):
    engine = VllmEngine(llm, dict)
    requests = MixedRequests(vocab_size=50, scale=0.02)
    figures = Workload(requests).run_closed(engine, in_flight=2, num_requests=4, seed=1)
    drawn = requests.draw_closed(2, 4, 1)
    assert llm.llm_engine.sent == [(job.token_ids, job.num_output) for job in drawn]
    assert figures.output_tokens == sum(job.num_output for job in drawn)
    assert not engine.has_work


def test_rates_have_settled_when_none_gains_more_than_five_per_cent():
    assert not has_settled(None, {"closed": 100.0})
    assert not has_settled({"closed": 100.0, "open": 10.0}, {"closed": 100.0, "open": 10.6})
    assert has_settled({"closed": 100.0, "open": 10.0}, {"closed": 50.0, "open": 10.4})


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.0"))
    return argparse.Namespace(
        turns=[],
        closed=[2],
        rates=[],
        open_s=1.0,
        scale=0.001,
        engine="vllm",
        shapes=Path("gpt"),
        out=tmp_path,
        most_passes=4,
    )


def test_passes_repeat_with_an_empty_prefix_cache_until_they_settle(llm, arguments, tmp_path, monkeypatch):
    rates = iter([{"a": 1.0}, {"a": 3.0}, {"a": 3.1}])
    monkeypatch.setattr(vllm_workload, "list_rates", lambda measured: next(rates))
    vllm_workload.measure(llm, VllmEngine(llm, dict), arguments, startup_s=1.0)
    records = [Record.load(path).parameters for path in tmp_path.glob("*.json")]
    assert sorted(facts["pass"] for facts in records) == [1, 2, 3] and len(llm.resets) == 2
    assert len({facts["request_digest"] for facts in records}) == 1
    assert {facts["model"] for facts in records} == {"gpt, random weights"}


def test_passes_that_do_not_settle_end_and_say_so(llm, arguments, monkeypatch, capsys):
    rates = iter([{"a": 2.0**number} for number in range(9)])
    monkeypatch.setattr(vllm_workload, "list_rates", lambda measured: next(rates))
    vllm_workload.measure(llm, VllmEngine(llm, dict), arguments, startup_s=1.0)
    assert "rates still grew in pass 4: raise --most-passes" in capsys.readouterr().out


def test_prefix_cache_that_is_not_emptied_ends_the_measurement(llm, arguments):
    llm.reset_prefix_cache = lambda: False
    with pytest.raises(SystemExit, match="did not empty its prefix cache"):
        vllm_workload.measure(llm, VllmEngine(llm, dict), arguments, startup_s=1.0)
