"""The choice of decoding steps, their reuse, and on a GPU the equality of graphs and eager steps."""

import itertools
from dataclasses import replace

import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig, KernelConfig
from firesteel.device import GIB, find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.engine import Engine
from firesteel.engine.preparation import prepare
from firesteel.engine.step import step_sizes, step_store
from firesteel.engine.step.decode_loop import UNOBSERVED
from firesteel.engine.step.step_store import FusedOps, StepStore
from firesteel.errors import ArgumentsRefused, KernelError, UserError
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.measure.tokens.runs import draw_requests, run_together
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.network_step import NetworkStep
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import SamplingParams


@pytest.fixture
def make_store(llm):
    def make(*, fused=None, dtype=torch.float32, most_requests=64):
        cache = new_cache(llm.spec, 40, 4, llm.device, dtype)
        return StepStore(
            llm.model,
            cache,
            llm.device,
            KernelConfig(),
            fused=fused,
            idle_page=39,
            most_requests=most_requests,
            max_context=llm.max_context,
        )

    return make


@pytest.fixture
def references(llm):
    return FusedOps(ops=DecodeOps.choose(llm.device, llm.kernels.ledger))


def test_few_requests_run_in_the_fused_ops_and_many_in_the_network(make_store, references):
    store = make_store(fused=references)
    for count, kind, rows in ((1, DecodeStep, 1), (8, DecodeStep, 8), (9, NetworkStep, 12), (21, NetworkStep, 24)):
        step = store.find(count, 30).step
        assert (type(step), step.num_requests) == (kind, rows)
    assert isinstance(make_store().find(1, 30).step, NetworkStep), "without fused ops"


def test_step_is_made_once(make_store):
    store = make_store()
    first = store.find(1, 30)
    assert store.find(1, 40) is first and store.find(2, 30) is not first and store.seconds > 0
    assert len(store.ready()) == 2


def test_prepared_steps_are_made_before_they_are_needed_the_largest_first(make_store):
    store, told = make_store(most_requests=10), []
    store.prepare(lambda: told.append(store.ready()[-1].step.num_requests))
    assert told == [10, 8, 7, 6, 5, 4, 3, 2, 1]
    made, seconds = store.ready(), store.seconds
    assert [store.find(count, 30) for count in (9, *range(8, 0, -1))] == made and store.seconds == seconds > 0
    assert store.num_bytes == store.num_late == 0, "nothing is captured on a CPU"


@pytest.mark.parametrize("has_fused", [False, True])
def test_prepared_steps_are_all_that_plans_can_need(make_store, references, has_fused, monkeypatch):
    monkeypatch.setattr(step_store, "SHORT", 64)
    monkeypatch.setattr(step_sizes, "LEAST_TOKENS", 16)
    store = make_store(fused=references if has_fused else None, most_requests=20)
    store.prepare()
    for requests, tokens in itertools.product(range(1, 21), (1, 16, 17, 64, 65, 128, 129, 256)):
        assert store.find(requests, tokens).num_tokens >= tokens
    assert store.num_late == 0


def test_step_made_after_preparation_is_late_and_named(make_store, references, caplog):
    store = make_store(most_requests=1)
    store.prepare()
    store.most_requests = 2
    store.find(2, 30)
    assert (
        store.num_late == 1 and "a decoding step of 2 requests with up to 256 tokens each was made" in caplog.text
    )


def test_trial_calls_every_op_and_keeps_no_step(make_store, references, llm):
    store = make_store(fused=references, most_requests=12)
    llm.kernels.ledger.clear()
    store.call_ops()
    called = {ran.op for ran in llm.kernels.ledger.entries}
    assert {"decode_qkv", "attention", "moe_matmul", "linear"} <= called
    assert store.ready() == [] and store.seconds == 0


@pytest.mark.parametrize("requests", [1, 2])
def test_there_is_a_step_for_short_page_tables_and_one_for_long(make_store, references, llm, requests, monkeypatch):
    monkeypatch.setattr(step_store, "SHORT", 64)
    store = make_store(fused=references)
    short, long = store.find(requests, 64), store.find(requests, 65)
    assert (short.num_tokens, long.num_tokens) == (64, llm.max_context) and store.find(requests, 5) is short
    prepared = make_store(fused=references, most_requests=requests)
    prepared.prepare()
    made = [(ready.step.num_requests, ready.num_tokens) for ready in prepared.ready()]
    assert sorted(made) == [(size, held) for size in range(1, requests + 1) for held in (64, llm.max_context)]


def test_tables_are_as_wide_as_the_texts_need(make_store, llm):
    store = make_store()
    assert store.find(1, 30).num_tokens == store.find(1, llm.max_context).num_tokens == llm.max_context


def test_steps_that_fused_ops_refuse_run_in_the_network_unless_those_were_requested(
    make_store, references, llm, monkeypatch, caplog
):
    monkeypatch.setattr(llm.model, "tile", "64x64")
    store = make_store(fused=references)
    assert isinstance(store.find(2, 30).step, NetworkStep) and "no tile to pin" in store.refusals[2]
    assert "decoding steps of 2 requests run in the network" in caplog.text
    with pytest.raises(UserError, match="no tile to pin"):
        make_store(fused=replace(references, is_asked=True)).find(2, 30)


def test_fused_ops_accept_fp8_pages(make_store, references):
    store = make_store(fused=replace(references, is_asked=True), dtype=torch.float8_e4m3fn)
    assert isinstance(store.find(2, 30).step, DecodeStep) and not store.refusals


@pytest.mark.parametrize(("kind", "is_refusal"), [(ArgumentsRefused, True), (KernelError, False)])
def test_op_may_refuse_its_arguments_but_not_fail(make_store, references, kind, is_refusal):
    def fail(*args):
        raise kind("decode_o: says no")

    store = make_store(fused=FusedOps(ops=references.ops._replace(o=fail)))
    if is_refusal:
        assert isinstance(store.find(2, 30).step, NetworkStep)
        return
    with pytest.raises(KernelError, match="says no"):
        store.find(2, 30)


SPEC = replace(PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096, max_context=4096)


@pytest.fixture(scope="module")
def gpu_model():
    device = find_device("cuda")
    kernels = Kernels(device, {}, Ledger())
    model = GptOss(SPEC, synthetic_weights(SPEC, device, seed=3), kernels, device, max_context=4096)
    return model, device, FusedOps(ops=DecodeOps.choose(device, kernels.ledger), is_asked=True)


def run_on_gpu(gpu_model, count, params, *, ahead, kv_dtype="auto", **kernels):
    model, device, fused = gpu_model
    cache = CacheConfig(kv_cache_gib=2.0, kv_dtype=kv_dtype)
    engine = Engine(
        model,
        device,
        BatchConfig(max_num_seqs=64, max_num_batched_tokens=8192),
        cache,
        max_context=4096,
        kernels=KernelConfig(**kernels),
        fused=fused,
        run_ahead_steps=ahead,
    )
    lengths = [30 + 17 * number for number in range(count)]
    made = run_together(engine, draw_requests(lengths, params, SPEC.vocab_size, seed=1))
    return made.tokens, engine


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 3, 8, 9, 21])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}, {"logprobs": 2}], ids=str)
def test_gpu_graph_is_eager_and_run_ahead_is_not(gpu_model, count, params):
    """All requests end together, so batches and every bit are the same. Prompts have no padding."""
    params = SamplingParams(max_tokens=90, **params)
    eager, _ = run_on_gpu(gpu_model, count, params, ahead=0, cuda_graphs=False)
    plain, _ = run_on_gpu(gpu_model, count, params, ahead=0, dependent_launch=False, prefill_graphs=False)
    ahead, engine = run_on_gpu(gpu_model, count, params, ahead=3, prefill_graphs=False)
    assert eager == plain == ahead
    steps = engine.loop.store.ready()
    assert steps and all(step.is_captured for step in steps)
    assert isinstance(engine.loop.current.step, DecodeStep if count <= 8 else NetworkStep)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 3, 8])
def test_gpu_steps_over_fp8_pages(gpu_model, count):
    params, texts = SamplingParams(max_tokens=90), {}
    for ahead, kernels in ((0, {"cuda_graphs": False}), (3, {"prefill_graphs": False})):
        texts[ahead], engine = run_on_gpu(gpu_model, count, params, ahead=ahead, kv_dtype="fp8", **kernels)
        assert isinstance(engine.loop.current.step, DecodeStep) and not engine.loop.store.refusals
    assert texts[0] == texts[3]


@pytest.mark.gpu
def test_gpu_launches_ahead_without_waiting(gpu_model, forbid_waiting):
    _, engine = run_on_gpu(gpu_model, 2, SamplingParams(max_tokens=4), ahead=3)
    for request in draw_requests([30, 47], SamplingParams(max_tokens=200), SPEC.vocab_size, seed=1):
        engine.submit(request)
    for _ in range(3):
        engine.step()
    engine.in_flight.launched.clear()
    with forbid_waiting(), torch.inference_mode():
        for _ in range(3):
            engine._launch_ahead(UNOBSERVED)
            engine.in_flight.launched.clear()


@pytest.mark.gpu
def test_gpu_statistics_tell_what_graphs_cost(gpu_model):
    _, engine = run_on_gpu(gpu_model, 9, SamplingParams(max_tokens=4), ahead=3)
    before = engine.statistics()
    assert before.graphs == len(engine.loop.store.ready()) >= 1 and before.graph_s > 0
    told = []
    prepare(engine, lambda *counts: told.append(counts))
    after = engine.statistics()
    assert told[-1][0] == told[-1][1] > after.graphs + after.prompt_graphs > 40
    assert after.late_captures == after.late_compilations == 0
    assert after.graph_s > before.graph_s and before.graph_bytes <= after.graph_bytes < GIB
