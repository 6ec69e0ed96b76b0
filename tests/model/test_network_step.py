"""The network as a step over static tensors: results, next inputs, padding and alignment."""

import pytest
import torch

from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.step.batch import build_batch
from firesteel.errors import UserError
from firesteel.model.network_step import NetworkStep
from firesteel.types import Plan, Request, SamplingParams, Span

PAGE, IDLE = 4, 39


@pytest.fixture
def make_step(llm):
    def make(num_requests, num_pages=5):
        cache = new_cache(llm.spec, IDLE + 1, PAGE, llm.device, llm.device.dtype)
        for pages in (*cache.keys, *cache.values):
            pages.zero_()
        logits = torch.empty(num_requests, llm.spec.vocab_size)
        return NetworkStep(
            llm.model, cache, num_requests=num_requests, num_pages=num_pages, idle_page=IDLE, logits=logits
        )

    return make


def batch_of(*held, device="cpu"):
    """Returns a batch of requests that hold `held` tokens; the last is to be computed; pages are unordered."""
    spans = []
    for number, count in enumerate(held):
        request = Request(request_id=str(number), token_ids=[7] * count, params=SamplingParams())
        full, window = ([(13 * number + 5 * page + offset) % IDLE for page in range(4)] for offset in (1, 20))
        spans.append(
            Span(
                request=request,
                token_ids=[7] * count,
                start=count - 1,
                end=count,
                full_pages=full,
                window_pages=window,
                num_logits=1,
            )
        )
    return build_batch(Plan(spans=spans), PAGE, torch.device(device))


def test_run_is_the_network_and_leaves_the_inputs_of_the_next_step(make_step, llm):
    step, given = make_step(2), batch_of(3, 8)
    step.load(given)
    expected = llm.model.logits(llm.model.forward(given, step.cache))
    logits = step.run()
    assert logits is step.logits and torch.equal(logits, expected)
    assert torch.equal(step.batch.token_ids, expected.argmax(-1))
    assert torch.equal(step.result.best, expected.amax(-1))
    assert step.batch.positions.tolist() == [3, 8] and step.batch.kv_lens.tolist() == [4, 9]
    for view, kind in ((step.batch.full, given.full), (step.batch.window, given.window)):
        pages = [int(kind.page_table[0, 0]), int(view.page_table[1, 2])]
        assert view.slots.tolist() == [pages[0] * PAGE + 3, pages[1] * PAGE]


def test_rows_without_a_request_stay_in_the_idle_page(make_step):
    step = make_step(3)
    step.load(batch_of(3))
    for _ in range(2):
        step.run()
    assert step.batch.positions.tolist() == [4, 0, 0] and step.batch.kv_lens.tolist() == [5, 1, 1]
    assert step.batch.full.slots[1:].tolist() == step.batch.window.slots[1:].tolist() == [IDLE * PAGE] * 2


def test_last_step_of_the_last_page_points_nowhere_outside(make_step):
    step = make_step(1, num_pages=1)
    step.load(batch_of(4))
    step.run()
    assert step.batch.positions.tolist() == [4] and 0 <= int(step.batch.full.slots) < (IDLE + 1) * PAGE


@pytest.mark.parametrize("num_requests", [1, 9, 16, 17])
def test_every_tensor_of_the_batch_begins_aligned(make_step, num_requests):
    """Triton recompiles a kernel for a pointer of a different alignment."""
    batch = make_step(num_requests, num_pages=5).batch
    views = [tensor for view in (batch.full, batch.window) for tensor in (view.page_table, view.slots)]
    tensors = [batch.positions, batch.kv_lens, *views]
    assert all((tensor.data_ptr() - tensor.untyped_storage().data_ptr()) % 128 == 0 for tensor in tensors)
    assert all(tensor.is_contiguous() for tensor in tensors)


def test_inputs_can_be_put_back(make_step):
    step = make_step(2)
    step.load(batch_of(3, 8))
    before = step.copy()
    first = step.run().clone()
    step.restore(before)
    assert torch.equal(step.run(), first)


def test_more_requests_than_rows_are_refused(make_step):
    with pytest.raises(UserError, match="a step of 1 requests with one token each was given 2 tokens"):
        make_step(1).load(batch_of(3, 8))
