"""Preparation makes everything before the first request; later builds are counted and named."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig
from firesteel.engine import preparation
from firesteel.engine.engine import Engine
from firesteel.engine.step.step_store import FusedOps
from firesteel.kernels.ledger import Ledger, Ran
from firesteel.measure.tokens.runs import draw_requests, run_together
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import uncounted
from firesteel.model.prompt_sizes import TOKENS
from firesteel.types import SamplingParams


@pytest.fixture
def make(llm):
    def make_engine(*, eager=True, **batch):
        settings = {"page_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 40, **batch}
        return Engine(
            llm.model,
            llm.device,
            BatchConfig(**settings),
            CacheConfig(kv_cache_gib=0.01),
            max_context=llm.max_context,
            eager_prompt_steps=eager,
        )

    return make_engine


def test_all_steps_exist_afterwards_and_requests_make_none(make, llm):
    engine, told = make(), []
    preparation.prepare(engine, lambda *counts: told.append(counts))
    made = len(engine.prompts) + len(engine.loop.store.ready())
    assert told == [(number, made) for number in range(1, made + 1)]
    before = engine.statistics()
    assert (before.graphs, before.prompt_graphs) == (3, len(engine.prompts.sizes()))
    given = draw_requests([1, 15, 40, 41, 90], SamplingParams(max_tokens=9), llm.spec.vocab_size, seed=1)
    run_together(engine, given)
    after = engine.statistics()
    assert (after.graphs, after.prompt_graphs) == (before.graphs, before.prompt_graphs)
    assert after.late_captures == after.late_compilations == 0 and after.prompt_steps_replayed > 0


def test_pages_are_untouched(make):
    engine = make()
    cache = engine.runner.cache
    for pages in (*cache.keys, *cache.values):
        pages.fill_(7.0)
    preparation.prepare(engine)
    for pages in (*cache.keys, *cache.values):
        assert (pages[: engine.idle_page] == 7.0).all()
    assert engine.pool.num_held == 0


def test_late_kernel_is_counted_and_named(make, caplog):
    engine = make()
    engine.count_late("fc1")
    assert engine.statistics().late_compilations == 1
    assert "fc1 was compiled, or read from disk, while requests were served" in caplog.text


class Noting:
    """A fake compiler of kernels ahead of time."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def wait(self, progress):
        for done in range(1, self.count + 1):
            progress(done, self.count)


@pytest.fixture
def gpu_engine(llm, monkeypatch):
    """Returns an engine that treats a CPU as a GPU, captures nothing, and records calls that only compile."""
    events, heard = [], []

    @contextmanager
    def compile_ahead():
        events.append("begin")
        yield Noting(5)
        events.append("end")

    monkeypatch.setattr(preparation, "compile_ahead", compile_ahead)
    monkeypatch.setattr(preparation, "listen", heard.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    model = GptOss(llm.spec, llm.model.weights, llm.kernels, llm.device, max_context=256)
    forward = model.forward

    def watch(batch, *args, **named):
        events.append((len(batch.token_ids), batch.num_tokens is not None))
        return forward(batch, *args, **named)

    monkeypatch.setattr(model, "forward", watch)

    def make_engine(graphs):
        engine = Engine(
            model,
            llm.device,
            BatchConfig(page_size=4, max_num_seqs=2, max_num_batched_tokens=40),
            CacheConfig(kv_cache_gib=0.01),
            max_context=256,
            eager_prompt_steps=graphs,
        )
        engine.device = replace(llm.device, capability=(9, 0))
        return engine

    return make_engine, events, heard


@pytest.mark.parametrize("graphs", [True, False])
def test_gpu_compiles_first_what_all_steps_and_other_plans_launch(gpu_engine, llm, graphs):
    make_engine, events, heard = gpu_engine
    engine, told = make_engine(graphs), []
    llm.kernels.ledger.clear()
    preparation.prepare(engine, lambda *counts: told.append(counts))
    ahead = events[events.index("begin") + 1 : events.index("end")]
    steps = {(size.tokens, True) for size in engine.prompts.sizes()} | {(1, True), (2, True)}
    outside = set() if graphs else {(count, False) for count in (16, 32, 40)}
    assert set(ahead) == steps | outside
    assert set(events[events.index("end") + 1 :]) >= outside, "and then are launched"
    assert told[4] == (5, told[-1][1]) and told[-1][0] == told[-1][1] == 5 + len(engine.prompts) + 2
    assert heard == [engine.count_late]


def test_calls_that_only_compile_are_not_in_the_ledger():
    ledger, known, new = Ledger(), Ran("op", "triton"), Ran("other", "triton")
    ledger.run(known, lambda: None)
    with uncounted(ledger):
        ledger.run(known, lambda: None)
        ledger.run(new, lambda: None)
    assert list(ledger.entries) == [known] and ledger.entries[known].calls == 1


def test_plans_beyond_the_largest_step_are_called_too(make, monkeypatch):
    """Tiles depend on the number of tokens, so the smallest and the largest op-by-op plans are called."""
    engine, called = make(max_num_batched_tokens=4096), []
    engine.scheduler.max_context = 8192
    monkeypatch.setattr(engine.runner.model, "forward", lambda batch, *args: called.append(len(batch.token_ids)))
    monkeypatch.setattr(engine.runner.model, "logits", lambda hidden: None)
    preparation.call_outside(engine)
    assert sorted(called) == [TOKENS[-1] + 1, 4096]


def test_fused_steps_are_prepared_in_both_widths(llm, monkeypatch):
    monkeypatch.setattr("firesteel.engine.step.step_store.SHORT", 64)
    engine = Engine(
        llm.model,
        llm.device,
        BatchConfig(page_size=4, max_num_seqs=2),
        CacheConfig(kv_cache_gib=0.01),
        max_context=llm.max_context,
        fused=FusedOps(ops=DecodeOps.choose(llm.device, llm.kernels.ledger)),
    )
    preparation.prepare(engine)
    assert engine.statistics().graphs == 4 and engine.loop.store.num_late == 0
