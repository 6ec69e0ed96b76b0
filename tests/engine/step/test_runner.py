"""The runner returns logits of exactly the rows that a batch asks for."""

from array import array

import torch

from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.step.batch import build_batch
from firesteel.engine.step.runner import Runner
from firesteel.types import Plan, Request, SamplingParams, Span

PROMPTS = [[5, 6, 7, 8, 9], [40, 41, 42]]


def run(llm, counts):
    return run_and_write(llm, counts)[0]


def run_and_write(llm, counts):
    """Returns logits and the pages, which are zero where nothing was written."""
    runner = Runner(llm.model, new_cache(llm.spec, 8, 4, llm.device, torch.float32))
    for pages in (*runner.cache.keys, *runner.cache.values):
        pages.zero_()
    spans = [
        Span(
            request=Request(request_id=str(number), token_ids=prompt, params=SamplingParams()),
            token_ids=prompt,
            start=0,
            end=len(prompt),
            full_pages=array("q", [4 * number, 4 * number + 1]),
            window_pages=array("q", [4 * number + 2, 4 * number + 3]),
            num_logits=count,
        )
        for number, (prompt, count) in enumerate(zip(PROMPTS, counts, strict=True))
    ]
    return runner.run(build_batch(Plan(spans=spans), 4, llm.device.torch_device)), runner.cache


def test_logits_are_those_of_the_requested_rows(llm):
    whole = torch.cat([llm.logits(prompt) for prompt in PROMPTS])
    for counts, rows in (((5, 3), range(8)), ((1, 1), [4, 7]), ((2, 0), [3, 4]), ((0, 1), [7])):
        torch.testing.assert_close(run(llm, counts), whole[list(rows)], rtol=1e-4, atol=1e-4)


def test_no_rows_give_no_logits(llm):
    assert run(llm, (0, 0)).shape == (0, 272)


def test_keys_and_values_of_every_token_are_written_whatever_rows_are_wanted(llm):
    """Pieces of a prompt before the last want no logits, and later pieces read what they wrote."""
    _, whole = run_and_write(llm, (5, 3))
    assert all(pages.count_nonzero() for pages in (*whole.keys, *whole.values))
    for counts in ((1, 1), (2, 0), (0, 0)):
        _, cache = run_and_write(llm, counts)
        for expected, actual in zip((*whole.keys, *whole.values), (*cache.keys, *cache.values), strict=True):
            assert torch.equal(actual, expected)


def test_last_layer_continues_with_the_wanted_rows_only(llm, monkeypatch):
    tokens = []
    mix = llm.model.mix
    monkeypatch.setattr(llm.model, "mix", lambda x, *rest: tokens.append(len(x.plain)) or mix(x, *rest))
    before = llm.spec.num_layers - 1
    for counts, rows in (((5, 3), [8]), ((1, 1), [2]), ((2, 0), [2]), ((0, 0), [])):
        tokens.clear()
        run(llm, counts)
        assert tokens == [8] * before + rows
