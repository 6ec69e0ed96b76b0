"""The choice of padded prompt steps for plans, counts of plans that fit none, and equal tokens."""

from dataclasses import replace

import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig, KernelConfig
from firesteel.device import GIB, find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.engine import Engine
from firesteel.engine.step.prompt_store import OutsideCounts, PromptStore
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.measure.tokens.runs import draw_requests, run_together
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepMemory
from firesteel.model.prompt_sizes import PromptSize
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Plan, Request, SamplingParams, Span


@pytest.fixture
def make_store(llm):
    def make(*, eager=True, most_tokens=8192, most_requests=6):
        memory = StepMemory(llm.device, most_requests=most_requests, vocab_size=llm.spec.vocab_size)
        cache = new_cache(llm.spec, 40, 4, llm.device, torch.float32)
        return PromptStore(
            llm.model,
            cache,
            llm.device,
            KernelConfig(),
            memory,
            most_tokens=most_tokens,
            most_requests=most_requests,
            max_context=llm.max_context,
            eager=eager,
        )

    return make


def span(count, *, held=None, score=False, **params):
    held = held or count
    request = Request(request_id="", token_ids=[1] * held, params=SamplingParams(**params), score=score)
    return Span(
        request=request,
        token_ids=request.token_ids,
        start=held - count,
        end=held,
        full_pages=[],
        window_pages=[],
        num_logits=1,
    )


def test_step_is_the_one_of_the_padded_size_and_is_made_once(make_store):
    store = make_store()
    for spans, size in (
        ([span(1)], (16, 1)),
        ([span(16)], (16, 1)),
        ([span(17)], (32, 1)),
        ([span(9), span(1, held=30)], (16, 6)),
        ([span(2048)], (2048, 1)),
    ):
        assert store.find(Plan(spans=spans)).step.size == PromptSize(*size)
    assert store.find(Plan(spans=[span(12)])) is store.find(Plan(spans=[span(3)]))
    assert len(store) == 4 and store.num_launched == 7 and store.outside == OutsideCounts() and store.seconds > 0


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([span(2049)], "tokens"),
        ([span(5), span(9, score=True)], "logits"),
        ([span(1, score=True)], "logits"),
        ([span(5, held=8, prompt_logprobs=0)], "logits"),
    ],
)
def test_plans_that_fit_no_step_are_counted_by_reason(make_store, spans, reason):
    store = make_store()
    assert store.find(Plan(spans=spans)) is None
    assert store.outside == OutsideCounts(**{reason: 1}) and store.num_launched == len(store) == 0


def test_cpu_has_no_prompt_steps_unless_eager(make_store):
    store = make_store(eager=False)
    store.prepare()
    assert store.find(Plan(spans=[span(5)])) is None and store.outside == OutsideCounts(off=1)
    assert len(store) == 0 and store.sizes() == []


def test_prepared_steps_are_all_that_plans_need_the_largest_first(make_store):
    store, told = make_store(most_tokens=100, most_requests=3), []
    store.prepare(lambda: told.append(len(store)))
    count = len(store.sizes())
    assert told == list(range(1, count + 1))
    seconds = store.seconds
    for tokens in (1, 16, 17, 99, 100):
        for requests in range(1, min(tokens, 3) + 1):
            assert store.find(Plan(spans=[span(tokens - requests + 1), *[span(1)] * (requests - 1)])) is not None
    assert store.seconds == seconds and len(store) == count and store.num_bytes == store.num_late == 0


def test_step_that_is_made_after_preparation_is_late_and_named(make_store, caplog):
    store = make_store(most_tokens=16)
    store.prepare()
    store.find(Plan(spans=[span(20)]))
    assert store.num_late == 1 and "a step of 32 tokens of 1 requests was made while requests" in caplog.text


def run_engine(llm, requests, *, eager, **batch):
    engine = Engine(
        llm.model,
        llm.device,
        BatchConfig(page_size=4, **batch),
        CacheConfig(kv_cache_gib=0.01),
        max_context=llm.max_context,
        eager_prompt_steps=eager,
    )
    return run_together(engine, requests).tokens, engine


@pytest.mark.parametrize("budget", [15, 16, 17, 64, 2048])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}, {"logprobs": 2}], ids=str)
def test_tokens_are_those_of_steps_launched_op_by_op(llm, budget, params):
    """Lengths are at the edges of sizes; a small budget cuts prompts into pieces beside decoding requests."""
    lengths = [1, 15, 16, 17, 31, 32, 33, 70]
    given = draw_requests(lengths, SamplingParams(max_tokens=9, **params), llm.spec.vocab_size, seed=1)
    settings = {"max_num_seqs": 5, "max_num_batched_tokens": budget}
    padded, engine = run_engine(llm, given, eager=True, **settings)
    plain, other = run_engine(llm, given, eager=False, **settings)
    assert padded == plain
    assert (
        engine.prompts.num_launched == other.prompts.outside.off > 0 and engine.prompts.outside == OutsideCounts()
    )


def test_prefix_that_is_cached_is_not_computed_again(llm):
    text = [(7 * position) % 250 for position in range(90)]
    first = Request(request_id="first", token_ids=text[:80], params=SamplingParams(max_tokens=3))
    second = Request(request_id="second", token_ids=text, params=SamplingParams(max_tokens=5))
    texts = {}
    for eager in (False, True):
        _, engine = run_engine(llm, [first], eager=eager)
        texts[eager] = run_together(engine, [second]).tokens
        assert engine.statistics().cached_tokens >= 76
        assert (engine.prompts.num_launched > 0) == eager
    assert texts[True] == texts[False]


def test_long_prompt_beside_decoding_is_cut_to_stay_within_the_bound(llm, monkeypatch):
    """The clock advances by one millisecond per token of a padded step."""
    engine = Engine(
        llm.model,
        llm.device,
        BatchConfig(max_num_seqs=4, max_num_batched_tokens=128, max_decode_delay_ms=96),
        CacheConfig(kv_cache_gib=0.01),
        max_context=llm.max_context,
        eager_prompt_steps=True,
    )
    engine.scheduler.find_room = engine.cost.find_room
    now, plans, replay, take = 0.0, [], engine._replay, engine.scheduler.next

    def slow_replay(plan, ready):
        nonlocal now
        now += ready.step.size.tokens / 1000
        return replay(plan, ready)

    def note():
        plans.append(take())
        return plans[-1]

    monkeypatch.setattr(engine, "_replay", slow_replay)
    monkeypatch.setattr(engine.scheduler, "next", note)
    engine.clock = lambda: now
    short, *long = draw_requests([5, 240, 240], SamplingParams(max_tokens=15), llm.spec.vocab_size, seed=1)
    engine.submit(short)
    engine.step()
    for request in long:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    mixed = [plan for plan in plans if plan.num_tokens > len(plan.spans) and len(plan.spans) > 1]
    assert max(plan.num_tokens for plan in mixed) <= 128 and mixed[-1].num_tokens <= 96
    assert sum(plan.num_tokens == 96 for plan in mixed) >= 2, "an exact size"
    assert engine.statistics().requests_finished == 3


SPEC = replace(PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096, max_context=4096)


@pytest.fixture(scope="module")
def gpu_model():
    device = find_device("cuda")
    kernels = Kernels(device, {}, Ledger())
    return GptOss(SPEC, synthetic_weights(SPEC, device, seed=3), kernels, device, max_context=4096), device


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_gpu_graphs_give_the_tokens_of_padded_steps(gpu_model, kv_dtype):
    model, device = gpu_model
    texts, given = {}, draw_requests([20, 100, 33, 500, 700, 3000], SamplingParams(max_tokens=20), 4096, seed=1)
    for graphs in (False, True):
        engine = Engine(
            model,
            device,
            BatchConfig(max_num_seqs=8, max_num_batched_tokens=2048, max_decode_delay_ms=0.0),
            CacheConfig(kv_cache_gib=2.0, kv_dtype=kv_dtype),
            max_context=4096,
            kernels=KernelConfig(prefill_graphs=graphs),
            eager_prompt_steps=True,
        )
        texts[graphs] = run_together(engine, given).tokens
        assert engine.prompts.captures == graphs and engine.prompts.num_launched > 0
    assert texts[True] == texts[False]
    assert 0 < engine.prompts.num_bytes < 4 * GIB
