"""The decode step compared with the network, both with references on a CPU."""

from dataclasses import replace

import pytest
import torch

from firesteel import LLM, SamplingParams
from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec
from firesteel.measure.decode.steps import Pages, fill_pages, first_batch, lay_out, watch
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import GROUPS, DecodeError, DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.host_batch import HostBatch
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import KvCache, KvScales

CPU = find_device("cpu")
BASE = ModelSpec(
    num_layers=4,
    hidden_size=96,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_experts=6,
    num_active=4,
    vocab_size=300,
    windows=(8, None, 8, None),
    rope=RopeSpec(theta=150000.0, factor=32.0, original_context=64),
    max_context=512,
)
SPECS = {
    "base": BASE,
    "window first seen on the last page": replace(BASE, windows=(5, None, 5, None), num_kv_heads=1),
    "full layers only": replace(BASE, windows=(None,) * 4, num_active=2),
    "window layers only": replace(BASE, windows=(7,) * 4, swiglu_limit=0.5),
    "all dense layers MXFP4": replace(BASE, mxfp4_layers=("qkv", "o", "lm_head")),
}
LENGTHS = {1: [21], 3: [0, 30, 9], 8: [3, 40, 15, 16, 17, 0, 31, 8]}
PAGE_SIZE = 8
STEPS = 20  # windows and texts cross two pages or more


def model_of(spec, seed=0, **settings):
    weights = synthetic_weights(spec, CPU, seed=seed)
    return GptOss(spec, weights, Kernels(CPU, {}, Ledger()), CPU, max_context=spec.max_context, **settings)


def ops_of(model):
    return DecodeOps.choose(CPU, model.kernels.ledger)


def begin(model, contexts, *, page_size=PAGE_SIZE, seed=5, room=STEPS, dtype=torch.float32):
    """Returns a cache with random content, the batch of the first tokens, and pages."""
    window = max((size for size in model.spec.windows if size is not None), default=0)
    pages = lay_out(contexts, room=room, page_size=page_size, window=window, seed=seed)
    cache = new_cache(model.spec, pages.count, page_size, CPU, dtype)
    fill_pages(cache, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(model.spec.vocab_size, (len(contexts),), generator=generator).tolist()
    return cache, first_batch(first, contexts, pages, cache), pages


def clone(cache):
    """Copies a cache; layers that share tensors share their copies."""
    copies = {tensor.data_ptr(): tensor.clone() for tensor in (*cache.keys, *cache.values)}
    return KvCache(
        keys=[copies[tensor.data_ptr()] for tensor in cache.keys],
        values=[copies[tensor.data_ptr()] for tensor in cache.values],
        saturated=None if cache.saturated is None else cache.saturated.clone(),
    )


def by_network(model, cache, batch, contexts, pages, steps):
    """Returns [(tokens, logits)] of GptOss, greedy, with a new batch for each step."""
    results = []
    for number in range(1, steps + 1):
        logits = model.logits(model.forward(batch, cache))
        tokens = logits.argmax(-1).tolist()
        results.append((tokens, logits))
        if number < steps:
            batch = first_batch(tokens, [context + number for context in contexts], pages, cache)
    return results


def compare(model, contexts, **settings):
    cache, batch, pages = begin(model, contexts, **settings)
    step = DecodeStep(model, clone(cache), ops_of(model), num_requests=len(contexts), num_pages=pages.width)
    step.load(batch)
    with torch.inference_mode():
        expected = by_network(model, cache, batch, contexts, pages, STEPS)
    for tokens, logits in expected:
        actual = step.run()
        assert actual.dtype == torch.float32
        assert (actual - logits).norm() / logits.norm() < 1e-4
        assert step.inputs.token_ids.tolist() == tokens
    assert step.inputs.positions.tolist() == [context + STEPS for context in contexts]
    assert step.inputs.kv_lens.tolist() == [context + STEPS + 1 for context in contexts]
    for ours, theirs in zip((*step.cache.keys, *step.cache.values), (*cache.keys, *cache.values), strict=True):
        assert torch.allclose(ours.float(), theirs.float(), atol=1e-3)
    if cache.saturated is not None:
        assert int(step.cache.saturated) == int(cache.saturated) > 0
    assert len({tuple(tokens) for tokens, _ in expected}) > 5


@pytest.mark.parametrize("num_requests", LENGTHS)
@pytest.mark.parametrize("label", SPECS)
def test_greedy_tokens_and_logits_equal_those_of_the_network(label, num_requests):
    compare(model_of(SPECS[label], seed=sorted(SPECS).index(label)), LENGTHS[num_requests])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_embeddings_of_any_type_are_written_in_place(dtype):
    """On a GPU they have the type of activations; graphs hold the addresses of inputs."""
    model = model_of(BASE)
    embedding = model.weights.embedding.to(dtype)
    model.weights = replace(model.weights, embedding=embedding)
    cache, batch, pages = begin(model, [3, 9])
    step = DecodeStep(model, cache, ops_of(model), num_requests=2, num_pages=pages.width)
    places = [tensor.data_ptr() for tensor in step.inputs.tensors()]
    step.load(batch)
    assert torch.equal(step.inputs.r, embedding[batch.token_ids].float())
    step.load(HostBatch.of(batch), torch.tensor([5, 299]))
    assert torch.equal(step.inputs.r, embedding[[5, 299]].float())
    step.feed(torch.tensor([7, 0]))
    assert torch.equal(step.inputs.r, embedding[[7, 0]].float()) and step.inputs.token_ids.tolist() == [7, 0]
    assert places == [tensor.data_ptr() for tensor in step.inputs.tensors()]


@pytest.mark.parametrize("num_requests", LENGTHS)
@pytest.mark.parametrize("label", ["base", "window layers only"])
def test_keys_and_values_in_fp8_equal_those_of_the_network(label, num_requests):
    """Each layer has its own scales, so small that some values are clipped."""
    scales = KvScales(keys=(0.003, 0.004, 0.005, 0.006), values=(0.002, 0.003, 0.002, 0.004))
    model = model_of(SPECS[label], seed=3, kv_scales=scales)
    compare(model, LENGTHS[num_requests], dtype=torch.float8_e4m3fn)
    clipped = {ran.op: entry.clipped for ran, entry in model.kernels.ledger.entries.items() if entry.counters}
    assert set(clipped) == {"rope_kv_write"} and clipped["rope_kv_write"] > 0, "the ledger has them in one place"


@pytest.mark.parametrize("label", ["base", "all dense layers MXFP4"])
def test_activations_rounded_to_mxfp8_equal_those_of_the_network(label):
    compare(model_of(SPECS[label], activation="mxfp8"), LENGTHS[3])


def test_only_activations_of_packed_weights_are_rounded():
    model = model_of(replace(BASE, mxfp4_layers=("o",)), activation="mxfp8")
    cache, batch, pages = begin(model, [12])
    step = DecodeStep(model, cache, ops_of(model), num_requests=1, num_pages=pages.width)
    step.load(batch)
    calls = watch(step)
    groups = ("qkv", "o", "fc1", "fc2", "lm_head")
    asked = {group: {call.operands.activation for call in calls[group]} for group in groups}
    assert asked == {"qkv": {"bf16"}, "o": {"mxfp8"}, "fc1": {"mxfp8"}, "fc2": {"mxfp8"}, "lm_head": {"bf16"}}
    entries = {(ran.op, ran.activation) for ran in model.kernels.ledger.entries}
    assert ("decode_o", "mxfp8") in entries and ("decode_qkv", "bf16") in entries


def test_page_size_may_exceed_the_window_or_be_one_token():
    for page_size in (1, 64):
        compare(model_of(BASE), LENGTHS[3], page_size=page_size)


def test_sinks_can_be_switched_off_in_the_step():
    model = model_of(BASE)
    cache, batch, pages = begin(model, [12])
    logits = []
    for model.sinks in (True, False):
        step = DecodeStep(model, clone(cache), ops_of(model), num_requests=1, num_pages=pages.width)
        step.load(batch)
        logits.append(step.run())
    assert (logits[0] - logits[1]).norm() / logits[0].norm() > 1e-2


def test_kindling_continues_its_prompts_as_the_engine_does():
    """The network computes prompts of different lengths; then they are decoded together."""
    llm = LLM(device="cpu")
    prompts = [llm.tokenizer.encode(text) for text in ("The capital of France is", "2 + 3 =", "one, two, three, ")]
    expected = [
        llm.generate([prompt], SamplingParams(max_tokens=STEPS, ignore_eos=True))[0].token_ids for prompt in prompts
    ]
    model, contexts = llm.model, [len(prompt) - 1 for prompt in prompts]
    pages = lay_out(contexts, room=STEPS, page_size=PAGE_SIZE, window=max(contexts) + 1, seed=1)
    cache = new_cache(model.spec, pages.count, PAGE_SIZE, CPU, torch.float32)
    with torch.inference_mode():
        for position in range(max(contexts)):
            rows = [row for row, context in enumerate(contexts) if position < context]
            held = Pages(full=pages.full[rows], window=pages.window[rows], count=pages.count)
            tokens = [prompts[row][position] for row in rows]
            model.forward(first_batch(tokens, [position] * len(rows), held, cache), cache)
    step = DecodeStep(model, cache, ops_of(model), num_requests=len(prompts), num_pages=pages.width)
    step.load(first_batch([prompt[-1] for prompt in prompts], contexts, pages, cache))
    outputs = []
    for _ in range(STEPS):
        step.run()
        outputs.append(step.inputs.token_ids.tolist())
    assert [list(tokens) for tokens in zip(*outputs, strict=True)] == expected


def test_step_keeps_its_tensors_and_can_begin_again():
    model = model_of(BASE)
    cache, batch, pages = begin(model, LENGTHS[3])
    step = DecodeStep(model, cache, ops_of(model), num_requests=3, num_pages=pages.width)
    step.load(batch)
    addresses = [tensor.data_ptr() for tensor in step.inputs.tensors()]
    copied, first = step.inputs.copy(), step.run().clone()
    step.run()
    assert [tensor.data_ptr() for tensor in step.inputs.tensors()] == addresses
    step.inputs.restore(copied)
    assert torch.equal(step.run(), first)


def test_every_launch_but_the_first_is_dependent_if_requested():
    model = model_of(BASE)
    for dependent in (True, False):
        cache, batch, pages = begin(model, [3])
        step = DecodeStep(model, cache, ops_of(model), num_requests=1, num_pages=pages.width, dependent=dependent)
        step.load(batch)
        calls = watch(step)
        launches = [call.operands.dependent for group in GROUPS for call in calls[group]]
        assert len(launches) == 6 * BASE.num_layers + 2
        assert launches == [False] + [dependent] * (len(launches) - 1)


def test_narrow_tables_are_accepted_and_wide_ones_refused():
    model = model_of(BASE)
    cache, batch, pages = begin(model, [20])
    step = DecodeStep(model, cache, ops_of(model), num_requests=1, num_pages=pages.width + 2)
    step.inputs.full.page_table.fill_(99)
    step.load(batch)
    assert step.inputs.full.page_table[0, pages.width :].tolist() == [0, 0]
    narrow = DecodeStep(model, cache, ops_of(model), num_requests=1, num_pages=pages.width - 1)
    with pytest.raises(DecodeError, match=f"page tables of {pages.width} pages do not fit into {pages.width - 1}"):
        narrow.load(batch)


def test_batch_of_another_size_is_refused():
    model = model_of(BASE)
    cache, batch, pages = begin(model, [20, 3])
    step = DecodeStep(model, cache, ops_of(model), num_requests=3, num_pages=pages.width)
    with pytest.raises(DecodeError, match="3 requests with one token each was given 2 tokens of 2 requests"):
        step.load(batch)


@pytest.mark.parametrize(
    ("settings", "requests", "message"),
    [
        ({}, 9, "1 to 8 requests, not 9"),
        ({}, 0, "1 to 8 requests, not 0"),
        ({"activation": "mxfp4"}, 1, "use --activation mxfp8 or bf16"),
        ({"tile": "64x64"}, 1, "--tile auto"),
    ],
)
def test_steps_that_decode_ops_cannot_compute_are_refused_with_the_cure(settings, requests, message):
    model = model_of(BASE, **settings)
    with pytest.raises(DecodeError, match=message):
        DecodeStep(
            model, new_cache(BASE, 4, 8, CPU, torch.float32), ops_of(model), num_requests=requests, num_pages=4
        )
