"""Rows of one request in a step: equal to one step per token, and to a prompt of the same tokens."""

import pytest
import torch

from firesteel.engine.cache.kv_cache import new_cache
from firesteel.measure.decode.steps import Pages, fill_pages, first_batch, lay_out, watch
from firesteel.model.decode import DecodeStep
from firesteel.model.host_batch import HostBatch, count_stored
from firesteel.model.network_step import NetworkStep
from firesteel.types import Batch, KvScales, KvView
from tests.model.test_decode import BASE, CPU, PAGE_SIZE, SPECS, clone, model_of, ops_of
from tests.model.verified_rows import prompts_of, rows_of

# (tokens held, rows) of each request; a page has 8 tokens
ROWS = {
    "one request, in two pages": [(21, 5)],
    "eight rows from the first token on": [(0, 8)],
    "three requests": [(14, 3), (0, 2), (30, 1)],
    "rows begin a page": [(16, 2), (7, 2), (23, 2)],
}
FP8 = torch.float8_e4m3fn


def begin(model, requests, dtype=torch.float32, room=12):
    """Returns (cache, drafts, contexts, pages) with random content; one page belongs to nobody."""
    contexts = [held for held, _ in requests]
    window = max((size for size in model.spec.windows if size is not None), default=0)
    pages = lay_out(contexts, room=room, page_size=PAGE_SIZE, window=window, seed=5)
    cache = new_cache(model.spec, pages.count + 1, PAGE_SIZE, CPU, dtype)
    fill_pages(cache, seed=5)
    generator = torch.Generator().manual_seed(7)
    drafts = [torch.randint(model.spec.vocab_size, (rows,), generator=generator).tolist() for _, rows in requests]
    return cache, drafts, contexts, pages


def open_step(kind, model, cache, num_rows, pages, taps=None):
    """Opens a step; one through the network has a row of padding."""
    if kind == "fused":
        ops = ops_of(model)
        return DecodeStep(model, cache, ops, num_requests=num_rows, num_pages=pages.width, taps=taps)
    return NetworkStep(
        model,
        cache,
        num_requests=num_rows + 1,
        num_pages=pages.width,
        idle_page=pages.count,
        logits=torch.empty(num_rows + 1, model.spec.vocab_size),
        taps=taps,
    )


def assert_same_pages(ours, theirs, idle_page):
    for mine, expected in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
        torch.testing.assert_close(mine[:idle_page].float(), expected[:idle_page].float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["fused", "network"])
@pytest.mark.parametrize(
    ("label", "requests"),
    [*(("base", name) for name in ROWS), *((name, "three requests") for name in SPECS if name != "base")],
)
def test_rows_equal_one_step_per_token_and_a_prompt(label, requests, kind):
    check(model_of(SPECS[label]), ROWS[requests], kind)


@pytest.mark.parametrize("kind", ["fused", "network"])
def test_rows_with_keys_and_values_in_fp8(kind):
    scales = KvScales(keys=(0.03, 0.04, 0.05, 0.06), values=(0.02, 0.03, 0.02, 0.04))
    check(model_of(BASE, kv_scales=scales), ROWS["three requests"], kind, FP8)


def check(model, requests, kind, dtype=torch.float32):
    """Checks logits, most likely tokens, and keys and values of all layers."""
    cache, drafts, contexts, pages = begin(model, requests, dtype)
    at_once, one_by_one, as_prompt = cache, clone(cache), clone(cache)
    batch = rows_of(drafts, contexts, pages, at_once)
    num_rows = len(batch.token_ids)
    step = open_step(kind, model, at_once, num_rows, pages)
    step.load(batch)
    actual = step.run()[:num_rows]
    chosen = step.result.token_ids[:num_rows]
    with torch.inference_mode():
        prompts = prompts_of(drafts, contexts, pages, as_prompt)
        expected = model.logits(model.forward(prompts, as_prompt))
    single = open_step(kind, model, one_by_one, 1, pages)
    alone = []
    for request, tokens in enumerate(drafts):
        own = Pages(full=pages.full[[request]], window=pages.window[[request]], count=pages.count)
        for row, token in enumerate(tokens):
            single.load(first_batch([token], [contexts[request] + row], own, one_by_one))
            alone.append(single.run()[:1].clone())
    for logits in (expected, torch.cat(alone)):
        torch.testing.assert_close(actual, logits, atol=1e-3, rtol=1e-3)
        assert (actual - logits).norm() / logits.norm() < 1e-4
    assert torch.equal(chosen, actual.argmax(-1))
    assert_same_pages(at_once, as_prompt, pages.count)
    assert_same_pages(at_once, one_by_one, pages.count)


@pytest.mark.parametrize("kind", ["fused", "network"])
def test_a_row_does_not_see_the_rows_after_it(kind):
    model = model_of(BASE)
    cache, drafts, contexts, pages = begin(model, [(21, 5)])
    logits = []
    for last in (11, 12):
        step = open_step(kind, model, clone(cache), 5, pages)
        step.load(rows_of([[*drafts[0][:4], last]], contexts, pages, cache))
        logits.append(step.run().clone())
    torch.testing.assert_close(logits[0][:4], logits[1][:4], atol=1e-4, rtol=1e-4)
    assert (logits[0][4] - logits[1][4]).norm() / logits[0][4].norm() > 0.1


def test_stored_tokens_end_before_the_first_row_of_the_same_request():
    model = model_of(BASE)
    cache, drafts, contexts, pages = begin(model, [(14, 3), (0, 2), (30, 1)])
    step = open_step("fused", model, cache, 6, pages)
    step.load(rows_of(drafts, contexts, pages, cache))
    assert step.inputs.num_stored.tolist() == [14, 14, 14, 0, 0, 30]
    step.run()
    assert step.inputs.num_stored.tolist() == [15, 15, 15, 1, 1, 31], "run again, rows write their next positions"
    step.rest(pages.count)
    assert step.inputs.num_stored.tolist() == [0] * 6


def test_tokens_are_stored_but_for_the_newest_if_each_row_is_a_request():
    model = model_of(BASE)
    cache, drafts, contexts, pages = begin(model, [(14, 1), (0, 1), (30, 1)])
    step = open_step("fused", model, cache, 3, pages)
    step.load(rows_of(drafts, contexts, pages, cache))
    for _ in range(3):
        assert torch.equal(step.inputs.num_stored, step.inputs.kv_lens - 1)
        assert torch.equal(step.inputs.num_stored, step.inputs.positions)
        step.run()


@pytest.mark.parametrize(
    ("tables", "positions", "stored"),
    [
        ([[5, 6], [5, 7]], [9, 10], [9, 10]),  # two requests share a full page
        ([[5, 6], [5, 6]], [7, 8], [7, 7]),  # the second row begins a page
        ([[5, 0], [5, 6]], [7, 8], [7, 7]),  # the first row's table lacks the page that it does not see
        ([[5, 6], [7, 6], [5, 6]], [1, 1, 0], [0, 1, 0]),  # rows of a request in any order
    ],
)
def test_rows_belong_to_one_request_if_they_read_what_the_other_writes(tables, positions, stored):
    table, places = torch.tensor(tables), torch.tensor(positions)
    slots = table.gather(1, places[:, None] // 8)[:, 0] * 8 + places % 8
    view, numbers = KvView(page_table=table, slots=slots), torch.arange(len(places) + 1)
    batch = Batch(
        token_ids=places,
        positions=places,
        query_starts=numbers,
        kv_lens=places + 1,
        full=view,
        window=view,
        logit_rows=numbers[:-1],
    )
    counted = count_stored(HostBatch.of(batch), 8)
    assert counted.tolist() == stored


def test_attention_is_told_what_is_stored_in_every_layer():
    model = model_of(BASE)
    cache, drafts, contexts, pages = begin(model, [(14, 3)])
    step = open_step("fused", model, cache, 3, pages)
    step.load(rows_of(drafts, contexts, pages, cache))
    told = [call.operands.num_stored for call in watch(step)["attention"]]
    assert len(told) == BASE.num_layers and all(stored is step.inputs.num_stored for stored in told)
