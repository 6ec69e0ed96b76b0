"""The decode step against the network, both through references on a CPU."""

from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.kv_cache import new_cache
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec
from firesteel.measure.decode import fill_pages, first_batch, lay_out
from firesteel.model.decode import DecodeError, DecodeStep
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import KvCache

import sys, pathlib; sys.path.insert(0, str(pathlib.Path(__file__).parent)); from standins import OPS
CPU = find_device("cpu")
BASE = ModelSpec(
    num_layers=4, hidden_size=96, intermediate_size=64, num_heads=4, num_kv_heads=2, head_dim=32, num_experts=6,
    num_active=4, vocab_size=300, windows=(8, None, 8, None),
    rope=RopeSpec(theta=150000.0, factor=32.0, original_context=64), max_context=512,
)  # fmt: skip
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


def begin(model, contexts, *, page_size=PAGE_SIZE, seed=5, room=STEPS):
    """(cache with random content, batch of the first tokens, pages)"""
    window = max((one for one in model.spec.windows if one is not None), default=0)
    pages = lay_out(contexts, room=room, page_size=page_size, window=window, seed=seed)
    cache = new_cache(model.spec, pages.count, page_size, CPU, torch.float32)
    fill_pages(cache, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(model.spec.vocab_size, (len(contexts),), generator=generator).tolist()
    return cache, first_batch(first, contexts, pages, cache), pages


def clone(cache):
    """Layers that share tensors share their copies."""
    copies = {one.data_ptr(): one.clone() for one in (*cache.keys, *cache.values)}
    return KvCache(
        keys=[copies[one.data_ptr()] for one in cache.keys], values=[copies[one.data_ptr()] for one in cache.values]
    )


def by_network(model, cache, batch, contexts, pages, steps):
    """[(tokens, logits)] of GptOss, greedy, with a new batch for each step."""
    found = []
    for number in range(1, steps + 1):
        logits = model.logits(model.forward(batch, cache))
        tokens = logits.argmax(-1).tolist()
        found.append((tokens, logits))
        if number < steps:
            batch = first_batch(tokens, [context + number for context in contexts], pages, cache)
    return found


def compare(model, contexts, **settings):
    cache, batch, pages = begin(model, contexts, **settings)
    step = DecodeStep(model, clone(cache), num_requests=len(contexts), num_pages=pages.width, ops=OPS)
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
        assert torch.allclose(ours, theirs, atol=1e-3)
    assert len({tuple(tokens) for tokens, _ in expected}) > 5


@pytest.mark.parametrize("num_requests", LENGTHS)
@pytest.mark.parametrize("label", SPECS)
def test_greedy_tokens_and_logits_equal_the_networks(label, num_requests):
    compare(model_of(SPECS[label], seed=sorted(SPECS).index(label)), LENGTHS[num_requests])


def test_page_size_may_exceed_the_window_or_be_one_token():
    for page_size in (1, 64):
        compare(model_of(BASE), LENGTHS[3], page_size=page_size)
