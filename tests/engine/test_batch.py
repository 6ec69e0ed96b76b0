"""The tensors of a step against a loop over its tokens, one by one."""

import random

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.batch import Span, build_batch, empty_cache
from firesteel.kernels.rope import RopeSpec
from firesteel.model.spec import ModelSpec

CPU = torch.device("cpu")
SPEC = ModelSpec(
    num_layers=3, hidden_size=96, intermediate_size=64, num_heads=4, num_kv_heads=2, head_dim=32, num_experts=6,
    num_active=2, vocab_size=300, windows=(8, None, 8), rope=RopeSpec(theta=10000.0), max_context=64,
)  # fmt: skip


def random_spans(rng, page_size):
    """Requests anywhere in their text, with pages dealt from one pile; some own pages they do not fill yet."""
    spans, pile = [], list(range(500))
    rng.shuffle(pile)
    for _ in range(rng.randrange(1, 6)):
        start, length = rng.randrange(40), rng.randrange(1, 20)
        count = -(-(start + length) // page_size) + rng.randrange(3)
        pages = [pile.pop() for _ in range(count)]
        spans.append(Span([rng.randrange(300) for _ in range(length)], start, pages))
    return spans


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("seed", range(8))
def test_every_token_has_its_id_position_and_slot(seed, page_size):
    spans = random_spans(random.Random(seed), page_size)
    batch = build_batch(spans, page_size, CPU)
    row = 0
    for request, span in enumerate(spans):
        assert batch.query_starts[request] == row
        for offset, token in enumerate(span.token_ids):
            position = span.start + offset
            assert batch.token_ids[row] == token
            assert batch.positions[row] == position
            page, slot = divmod(int(batch.full.slots[row]), page_size)
            assert page == span.pages[position // page_size] and slot == position % page_size
            row += 1
        assert batch.kv_lens[request] == span.start + len(span.token_ids)
    assert batch.query_starts[len(spans)] == row == batch.token_ids.numel() == batch.full.slots.numel()
    assert batch.query_starts.numel() == len(spans) + 1


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("seed", range(8))
def test_page_table_leads_to_every_token_held(seed, page_size):
    spans = random_spans(random.Random(100 + seed), page_size)
    table = build_batch(spans, page_size, CPU).full.page_table
    longest = max(span.start + len(span.token_ids) for span in spans)
    assert table.shape == (len(spans), -(-longest // page_size))
    for request, span in enumerate(spans):
        for position in range(span.start + len(span.token_ids)):
            assert table[request, position // page_size] == span.pages[position // page_size]


def test_tables_of_short_requests_are_filled_with_a_page_that_exists():
    spans = [Span([1], 0, [7]), Span([2], 11, [3, 5, 6])]
    table = build_batch(spans, 4, CPU).full.page_table
    assert table.tolist() == [[7, 0, 0], [3, 5, 6]]


def test_window_layers_use_the_same_pages():
    batch = build_batch([Span([1, 2], 3, [9, 4])], 4, CPU)
    assert batch.window.slots.tolist() == batch.full.slots.tolist() == [9 * 4 + 3, 4 * 4]
    assert batch.window.page_table.tolist() == [[9, 4]]


def test_all_indices_are_int64():
    batch = build_batch([Span([1, 2], 3, [9, 4])], 4, CPU)
    tensors = (
        batch.token_ids,
        batch.positions,
        batch.query_starts,
        batch.kv_lens,
        batch.full.slots,
        batch.full.page_table,
    )
    assert {tensor.dtype for tensor in tensors} == {torch.int64}


def test_cache_has_its_own_pages_for_every_layer():
    cache = empty_cache(SPEC, num_pages=5, page_size=16, device=find_device("cpu"))
    tensors = [*cache.keys, *cache.values]
    assert len(cache.keys) == len(cache.values) == 3
    assert {(tuple(one.shape), one.dtype) for one in tensors} == {((5, 2, 16, 32), torch.float32)}
    assert len({one.data_ptr() for one in tensors}) == 6
