"""The tensors of a step, compared with a loop over its tokens."""

import random
from array import array
from dataclasses import replace

import pytest
import torch

from firesteel.engine.step.batch import build_batch, lay_out_rows
from firesteel.types import Plan, Request, SamplingParams, Span

CPU = torch.device("cpu")


def span(token_ids, start, full_pages, window_pages=None, num_logits=1):
    request = Request(request_id="a", token_ids=token_ids, params=SamplingParams())
    window_pages = full_pages if window_pages is None else window_pages
    return Span(
        request=request,
        token_ids=token_ids,
        start=start,
        end=len(token_ids),
        full_pages=array("q", full_pages),
        window_pages=array("q", window_pages),
        num_logits=num_logits,
    )


def random_plan(rng, page_size):
    """Returns a plan of requests at any position, with pages from one pool; some own pages that are not filled."""
    spans, pile = [], list(range(1000))
    rng.shuffle(pile)
    for _ in range(rng.randrange(1, 6)):
        start, length = rng.randrange(40), rng.randrange(1, 20)
        count = -(-(start + length) // page_size) + rng.randrange(3)
        full, window = ([pile.pop() for _ in range(count)] for _ in range(2))
        token_ids = [rng.randrange(300) for _ in range(start + length)]
        spans.append(span(token_ids, start, full, window, num_logits=rng.randrange(length + 1)))
    return Plan(spans=spans)


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("seed", range(8))
def test_every_token_has_its_id_position_and_slots(seed, page_size):
    plan = random_plan(random.Random(seed), page_size)
    batch = build_batch(plan, page_size, CPU)
    row, logit_rows = 0, []
    for request, part in enumerate(plan.spans):
        assert batch.query_starts[request] == row
        for position in range(part.start, part.end):
            assert batch.token_ids[row] == part.token_ids[position]
            assert batch.positions[row] == position
            for view, pages in ((batch.full, part.full_pages), (batch.window, part.window_pages)):
                page, offset = divmod(int(view.slots[row]), page_size)
                assert page == pages[position // page_size] and offset == position % page_size
            row += 1
        logit_rows += range(row - part.num_logits, row)
        assert batch.kv_lens[request] == part.end
    assert batch.query_starts[len(plan.spans)] == row == plan.num_tokens
    assert batch.token_ids.shape == batch.full.slots.shape == batch.window.slots.shape == (row,)
    assert batch.query_starts.numel() == len(plan.spans) + 1
    assert batch.logit_rows.tolist() == logit_rows


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("seed", range(8))
def test_page_tables_lead_to_every_token_held(seed, page_size):
    plan = random_plan(random.Random(100 + seed), page_size)
    batch = build_batch(plan, page_size, CPU)
    longest = max(part.end for part in plan.spans)
    for request, part in enumerate(plan.spans):
        for view, pages in ((batch.full, part.full_pages), (batch.window, part.window_pages)):
            assert view.page_table.shape == (len(plan.spans), -(-longest // page_size))
            for position in range(part.end):
                assert view.page_table[request, position // page_size] == pages[position // page_size]


def test_tables_of_short_requests_are_filled_with_a_page_that_exists():
    plan = Plan(spans=[span([1], 0, [7]), span(list(range(12)), 11, [3, 5, 6])])
    assert build_batch(plan, 4, CPU).full.page_table.tolist() == [[7, 0, 0], [3, 5, 6]]


def test_all_indices_are_int64_contiguous_and_aligned():
    """Triton recompiles a kernel for a pointer that is not a multiple of 16 bytes."""
    batch = build_batch(random_plan(random.Random(1), 4), 4, CPU)
    tensors = (
        batch.token_ids,
        batch.positions,
        batch.query_starts,
        batch.kv_lens,
        batch.full.slots,
        batch.window.slots,
        batch.full.page_table,
        batch.window.page_table,
        batch.logit_rows,
    )
    assert {tensor.dtype for tensor in tensors} == {torch.int64}
    assert all(tensor.is_contiguous() for tensor in tensors)
    first = batch.token_ids.data_ptr()
    assert all((tensor.data_ptr() - first) % 128 == 0 for tensor in tensors)


def test_everything_is_uploaded_in_one_copy(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "firesteel.engine.step.batch.upload", lambda values, device: seen.append(values) or torch.as_tensor(values)
    )
    build_batch(random_plan(random.Random(2), 4), 4, CPU)
    assert len(seen) == 1


def test_step_may_want_no_logits():
    assert build_batch(Plan(spans=[span([1, 2, 3], 0, [0], num_logits=0)]), 4, CPU).logit_rows.shape == (0,)


@pytest.mark.gpu
def test_batch_on_the_gpu_is_that_of_the_cpu():
    plan = random_plan(random.Random(3), 16)
    here, there = build_batch(plan, 16, CPU), build_batch(plan, 16, torch.device("cuda"))
    for name in ("token_ids", "positions", "query_starts", "kv_lens", "logit_rows"):
        assert torch.equal(getattr(here, name), getattr(there, name).cpu()), name
    for kind in ("full", "window"):
        for name in ("page_table", "slots"):
            mine, theirs = getattr(getattr(here, kind), name), getattr(getattr(there, kind), name)
            assert theirs.is_cuda and theirs.data_ptr() % 16 == 0
            assert torch.equal(mine, theirs.cpu())


def test_drafted_tokens_follow_those_of_a_span():
    plan = Plan(spans=[replace(span([5, 6, 7], 2, [3]), num_logits=3, draft_ids=(8, 9)), span([1, 2], 1, [4])])
    batch = build_batch(plan, 8, CPU)
    assert batch.token_ids.tolist() == [7, 8, 9, 2]
    assert batch.positions.tolist() == [2, 3, 4, 1]
    assert batch.query_starts.tolist() == [0, 3, 4] and batch.kv_lens.tolist() == [5, 2]
    assert batch.full.slots.tolist() == [26, 27, 28, 33]
    assert batch.logit_rows.tolist() == [0, 1, 2, 3]


def test_rows_of_a_request_see_those_before_them():
    drafting = replace(span([5, 6, 7], 2, [3, 1], [2, 6]), num_logits=3, draft_ids=(8, 9))
    batch = lay_out_rows(Plan(spans=[drafting, span([1, 2], 1, [4])]), 4)
    assert batch.token_ids.tolist() == [7, 8, 9, 2] and batch.positions.tolist() == [2, 3, 4, 1]
    assert batch.query_starts.tolist() == [0, 1, 2, 3, 4] and batch.kv_lens.tolist() == [3, 4, 5, 2]
    assert batch.full_table.tolist() == [[3, 1], [3, 1], [3, 1], [4, 0]]
    assert batch.window_table.tolist()[2] == [2, 6]
    assert batch.full_slots.tolist() == [14, 15, 4, 17] and batch.window_slots.tolist() == [10, 11, 24, 17]
    assert batch.logit_rows.tolist() == [0, 1, 2, 3]


def test_page_tables_reach_beyond_the_tokens():
    batch = build_batch(Plan(spans=[span([1, 2, 3], 2, [7, 8, 9])]), 2, CPU, 3)
    assert batch.full.page_table.tolist() == [[7, 8, 9]]
