"""Padded prompt steps: results equal to unpadded steps, and padding without effect."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.step.batch import build_batch, lay_out
from firesteel.errors import UserError
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepGraph
from firesteel.model.prompt_sizes import PromptSize
from firesteel.model.prompt_step import PromptStep
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import KvScales, Plan, Request, SamplingParams, Span

PAGE, PAGES = 4, 400
FP8 = torch.float8_e4m3fn


def plan_of(*lens, seed=0, page_size=PAGE, pages=PAGES, vocabulary=250, logits=None):
    """Returns a plan of requests given as (tokens to compute, tokens held then); pages are unordered, unshared."""
    generator = np.random.default_rng(seed)
    free, spans = list(generator.permutation(pages)), []
    for number, (count, held) in enumerate(lens):
        token_ids = generator.integers(0, vocabulary, held).tolist()
        full, window = ([int(free.pop()) for _ in range(-(-held // page_size))] for _ in range(2))
        spans.append(
            Span(
                request=Request(request_id=str(number), token_ids=token_ids, params=SamplingParams()),
                token_ids=token_ids,
                start=held - count,
                end=held,
                full_pages=full,
                window_pages=window,
                num_logits=1 if logits is None else logits[number],
            )
        )
    return Plan(spans=spans)


def fill(cache, seed=1):
    """Fills the cache with the same keys and values each time; the scale keeps FP8 within its range."""
    generator = torch.Generator(cache.keys[0].device).manual_seed(seed)
    for pages in {id(pages): pages for pages in (*cache.keys, *cache.values)}.values():
        drawn = torch.randn(pages.shape, generator=generator, device=pages.device)
        pages.copy_(drawn.to(pages.dtype))
    if cache.saturated is not None:
        cache.saturated.zero_()


@pytest.fixture
def make(llm):
    """Returns make(size, dtype), which builds a step with page tables for `max_context`."""

    def make_step(size, dtype=torch.float32, model=llm.model):
        cache = new_cache(llm.spec, PAGES, PAGE, llm.device, dtype)
        fill(cache)
        logits = torch.full((size.requests, llm.spec.vocab_size), float("nan"))
        return PromptStep(model, cache, size, num_pages=-(-llm.max_context // PAGE), logits=logits)

    return make_step


CASES = {
    "exactly a size": (PromptSize(16, 1), [(16, 16)]),
    "one less": (PromptSize(16, 1), [(15, 15)]),
    "one token": (PromptSize(16, 1), [(1, 1)]),
    "behind a prefix": (PromptSize(32, 1), [(20, 93)]),
    "as many requests as rows": (PromptSize(16, 8), [(2, 2)] * 8),
    "one request less": (PromptSize(16, 8), [(2, 9)] * 7),
    "beside decoding": (PromptSize(32, 8), [(1, 30), (1, 7), (17, 17), (3, 40), (1, 1)]),
    "every row with logits": (PromptSize(32, 16), [(1, 5 + number) for number in range(16)]),
    "all but one row with logits": (PromptSize(16, 15), [(2, 5), *[(1, 5 + number) for number in range(14)]]),
    "longest context": (PromptSize(16, 1), [(5, 256)]),
}


def both(step, plan, model):
    """Returns logits of the padded step and of the network on the same plan, and the pages that each wrote."""
    fill(step.cache)
    step.load(lay_out(plan, PAGE))
    padded = step.run()[: len(plan.spans)].clone()
    left = [pages.clone() for pages in (*step.cache.keys, *step.cache.values)]
    counted = None if step.cache.saturated is None else int(step.cache.saturated)
    fill(step.cache)
    with torch.inference_mode():
        plain = model.logits(model.forward(build_batch(plan, PAGE, torch.device("cpu")), step.cache))
    return padded, plain, left, [*step.cache.keys, *step.cache.values], counted


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, FP8], ids=["float32", "fp8"])
def test_padded_step_is_the_network(make, llm, case, dtype):
    size, lens = CASES[case]
    step = make(size, dtype)
    for seed in range(2):  # the second run finds leftovers of the first in its inputs
        padded, plain, left, expected, _ = both(step, plan_of(*lens, seed=seed), llm.model)
        torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-5)
        for mine, theirs in zip(left, expected, strict=True):
            torch.testing.assert_close(mine.float(), theirs.float(), rtol=1e-5, atol=1e-5)


def test_without_sinks(make, llm):
    model = GptOss(llm.spec, llm.model.weights, llm.kernels, llm.device, max_context=256, sinks=False)
    step = make(PromptSize(32, 8), model=model)
    padded, plain, *_ = both(step, plan_of((20, 20), (1, 9)), model)
    torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-5)
    with_sinks, *_ = both(make(PromptSize(32, 8)), plan_of((20, 20), (1, 9)), llm.model)
    assert not torch.allclose(padded, with_sinks, rtol=1e-2)


def test_padding_stores_nothing_and_is_not_counted_as_clipped(make, llm):
    """The scales are so small that every value is clipped: every real row counts, and no other."""
    tiny = KvScales(keys=(1e-6,) * 3, values=(1e-6,) * 3)
    model = GptOss(llm.spec, llm.model.weights, llm.kernels, llm.device, max_context=256, kv_scales=tiny)
    step, plan = make(PromptSize(32, 8), FP8, model), plan_of((5, 5), (1, 9))
    _, _, left, expected, counted = both(step, plan, model)
    assert 0 < counted == int(step.cache.saturated)
    for mine, theirs in zip(left, expected, strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


@contextmanager
def watched(kernels, name):
    """Returns a list that collects arguments and result of each call of an op."""
    plain, calls = getattr(kernels, name), []

    def watch(*args):
        returned = plain(*args)
        calls.append((args, returned))
        return returned

    watch.reads_fed = plain.reads_fed
    setattr(kernels, name, watch)
    try:
        yield calls
    finally:
        setattr(kernels, name, plain)


def test_padding_uses_no_expert_and_stays_finite(make, llm):
    step = make(PromptSize(32, 8))
    step.load(lay_out(plan_of((5, 5), (1, 9)), PAGE))
    with watched(llm.kernels, "moe_matmul") as calls:
        step.run()
    *before, last = calls
    assert len(before) == llm.spec.num_layers - 1
    for (operands,), y in before:
        ids, weights = operands.ids, operands.weights
        assert (ids[:6] >= 0).all() and (ids[6:] == -1).all() and (weights[6:] == 0).all()
        assert (y[6:] == 0).all() and (y[:6] != 0).any()
    (operands,), _ = last
    assert operands.ids.shape[0] == 8 and (operands.ids >= 0).all(), "of the rows with logits alone, padded"
    assert all(torch.equal(row, operands.x[0]) for row in operands.x[2:]), "by copies of the first"


def test_prompt_piece_without_logit_rows_returns_no_logits(make, llm):
    plan = plan_of((9, 9), (3, 20), logits=[0, 1])
    padded, plain, *_ = both(make(PromptSize(16, 8)), plan, llm.model)
    assert plain.shape[0] == 1
    torch.testing.assert_close(padded[:1], plain, rtol=1e-5, atol=1e-5)
    nothing = plan_of((9, 9), logits=[0])
    step = make(PromptSize(16, 1))
    step.load(lay_out(nothing, PAGE))
    assert step.run().isfinite().all()


def test_step_at_rest_stores_nothing(make):
    step = make(PromptSize(16, 8))
    step.load(lay_out(plan_of((9, 9)), PAGE))
    before = [pages.clone() for pages in (*step.cache.keys, *step.cache.values)]
    step.rest()
    step.run()
    step.warm_up()
    for now, old in zip((*step.cache.keys, *step.cache.values), before, strict=True):
        assert torch.equal(now, old)


def test_warming_up_launches_what_a_run_launches(make, llm):
    step, ledger = make(PromptSize(16, 8)), llm.kernels.ledger
    ledger.clear()
    step.warm_up()
    warmed = set(ledger.entries)
    ledger.clear()
    step.run()
    assert set(ledger.entries) == warmed


def test_batch_that_does_not_fit_is_refused(make):
    for size, lens, why in (
        (PromptSize(16, 1), [(17, 17)], "16 tokens of 1 requests was given 17 of 1"),
        (PromptSize(16, 1), [(1, 1), (1, 1)], "given 2 of 2"),
    ):
        with pytest.raises(UserError, match=why):
            make(size).load(lay_out(plan_of(*lens), PAGE))
    with pytest.raises(UserError, match="page tables of 65 pages do not fit into 64"):
        make(PromptSize(16, 1)).load(lay_out(plan_of((1, 257)), PAGE))


def test_every_input_begins_aligned(make):
    """Triton recompiles a kernel for a pointer of a different alignment."""
    step = make(PromptSize(48, 7))
    batch = PromptStep(step.model, step.cache, step.size, num_pages=63, logits=step.logits).batch
    numbers = [
        batch.token_ids,
        batch.positions,
        batch.query_starts,
        batch.kv_lens,
        batch.logit_rows,
        batch.num_tokens,
    ]
    numbers += [batch.full.slots, batch.window.slots]
    tables = [batch.full.page_table, batch.window.page_table]
    assert all((input.data_ptr() - input.untyped_storage().data_ptr()) % 128 == 0 for input in (*numbers, *tables))
    assert all(number.is_contiguous() for number in numbers) and all(table.shape == (7, 63) for table in tables)


SPEC = replace(PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096, max_context=8192)
GPU_PAGES = 2600  # of 64 tokens
GPU_CASES = {
    "one token": (PromptSize(16, 1), [(1, 1)]),
    "20": (PromptSize(32, 1), [(20, 20)]),
    "exactly 128": (PromptSize(128, 1), [(128, 128)]),
    "20 behind 5000": (PromptSize(32, 1), [(20, 5020)]),
    "500": (PromptSize(512, 1), [(500, 500)]),
    "1025 beside decoding": (
        PromptSize(1536, 64),
        [(1025, 1025), *[(1, 70 + 90 * number) for number in range(40)]],
    ),
    "beside decoding": (PromptSize(64, 32), [(20, 20), *[(1, 70 + 90 * number) for number in range(10)]]),
}


@pytest.fixture(scope="module")
def gpu_model():
    device = find_device("cuda")
    kernels = Kernels(device, {}, Ledger())
    return GptOss(SPEC, synthetic_weights(SPEC, device, seed=3), kernels, device, max_context=8192), device


@pytest.mark.gpu
@pytest.mark.parametrize("case", GPU_CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=["bf16", "fp8"])
def test_gpu_graph_is_eager_and_padding_changes_little(gpu_model, case, dtype, forbid_waiting):
    """Graph and eager bits are equal for the same padding; other sizes use other tiles and orders of summation."""
    (model, device), (size, lens) = gpu_model, GPU_CASES[case]
    cache = new_cache(SPEC, GPU_PAGES, 64, device, dtype)
    logits = torch.empty(size.requests, SPEC.vocab_size, device="cuda")
    step = PromptStep(model, cache, size, num_pages=128, logits=logits)
    plan = plan_of(*lens, page_size=64, pages=GPU_PAGES, vocabulary=4096)
    graph = StepGraph(step.run, model.kernels.ledger, device, undo=step.rest, warm_up=step.warm_up)
    host = lay_out(plan, 64)
    fill(cache)
    step.load(host)
    eager = step.run().clone()
    left = [pages.clone() for pages in (*cache.keys, *cache.values)]
    fill(cache)
    step.rest()
    with forbid_waiting():
        step.load(host)
        graph.replay()
    assert torch.equal(logits, eager) and eager.isfinite().all()
    for now, old in zip((*cache.keys, *cache.values), left, strict=True):
        assert torch.equal(now.view(torch.uint8), old.view(torch.uint8))
    fill(cache)
    with torch.inference_mode():
        plain = model.logits(model.forward(build_batch(plan, 64, device.torch_device), cache))
    error = (eager[: len(lens)] - plain).norm(dim=-1) / plain.norm(dim=-1)
    assert error.median() < 0.3, error  # near ties may choose another expert
