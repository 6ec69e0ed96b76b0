"""What a draft network is given: residuals and follower of every token that stays in a text."""

import random
from itertools import pairwise

import pytest
import torch

from firesteel.config import SpeculateConfig
from firesteel.engine.speculate import drafting
from firesteel.types import Request, SamplingParams
from tests.engine.arrivals import serve, tokens
from tests.engine.drafted_requests import PROMPTS, always, make, make_requests


class KnowingDrafter:
    """Drafts from known texts, some tokens wrongly, and checks that it has seen all tokens before."""

    name = "knowing"
    is_one_pass = False
    most_tokens = 5
    reach = 4
    usual_acceptance = None

    def __init__(self, model, texts, *, chance=0.7):
        self.model, self.texts = model, [list(text) for text in texts]
        self.boundaries = (0, model.spec.num_layers)
        self.random, self.chance = random.Random(1), chance
        self.num_drafted = self.num_rows = self.num_gaps = 0

    def page_bytes(self, page_size):
        return 8 * page_size

    def attach(self, num_pages, page_size, device):
        self.page_size = page_size
        self.stored = torch.full((num_pages * page_size, 2), -1)  # token and its follower

    def draft(self, context, counts):
        batch, width = context.batch, self.model.spec.hidden_size
        starts, lens = batch.query_starts.tolist(), batch.kv_lens.tolist()
        assert context.features.shape == (len(batch.token_ids), 2 * width)
        assert torch.equal(context.features[:, :width], self.model.weights.embedding[batch.token_ids].float())
        assert context.features[:, width:].isfinite().all() and context.features[:, width:].ne(0).any(1).all()
        drafts = torch.zeros(len(counts), max(counts), dtype=torch.int64)
        for request, (first, end) in enumerate(pairwise(starts)):
            rows = slice(first, end)
            followers = torch.cat((batch.token_ids[rows][1:], context.next_ids[request : request + 1]))
            self.stored[batch.full.slots[rows]] = torch.stack((batch.token_ids[rows], followers), 1)
            self.num_rows += end - first
            positions = torch.arange(lens[request])
            assert torch.equal(batch.positions[rows], positions[lens[request] - (end - first) :])
            table = batch.full.page_table[request]
            seen = self.stored[table[positions // self.page_size] * self.page_size + positions % self.page_size]
            known, text = self.find_text(seen[:, 0].tolist(), int(context.next_ids[request]))
            if counts[request]:
                assert len(table) * self.page_size >= lens[request] + self.reach
                following = known[len(text) : len(text) + counts[request]]
                drafts[request, : len(following)] = torch.tensor(self.spoil(following), dtype=torch.int64)
                self.num_drafted += 1
        return drafts

    def find_text(self, seen, following):
        """Returns the known text that was seen, which may lack whole pages, and its part up to `following`."""
        for known in self.texts:
            for begin in range(0, len(known) - len(seen), self.page_size):
                end = begin + len(seen)  # pages are lacking before the last one
                if known[end] == following and self.holds(known[:end], seen):
                    self.num_gaps += begin > 0
                    return known, known[: end + 1]
        raise AssertionError("not a text with whole pages left out")

    def holds(self, text, seen):
        """Returns whether `seen` is the text without some whole pages; the last page is not one of them."""
        ours, theirs = (
            [part[at : at + self.page_size] for at in range(0, len(part), self.page_size)] for part in (text, seen)
        )
        rest = iter(ours)
        return ours[-1:] == theirs[-1:] and all(page in rest for page in theirs)

    def spoil(self, token_ids):
        return [token if self.random.random() < self.chance else 1 - token % 2 for token in token_ids]


@pytest.fixture(scope="module")
def expected(llm):
    return tokens(serve(make(llm), make_requests({})))


@pytest.fixture(scope="module")
def texts(expected):
    return [[*prompt, *expected[str(number)]] for number, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize(
    "batch",
    [{}, {"max_num_seqs": 1}, {"max_num_batched_tokens": 7}, {"page_size": 16}, {"pages": 54}],
    ids=str,
)
def test_network_sees_every_token_and_changes_none(llm, expected, texts, batch):
    drafter = KnowingDrafter(llm.model, texts)
    engine = make(llm, speculate=always("eagle3"), drafter=drafter, **batch)
    assert tokens(serve(engine, make_requests({}))) == expected
    totals = engine.totals
    assert 0 < totals.accepted_tokens < totals.draft_tokens
    assert (engine.statistics().preemptions > 0) == ("pages" in batch)
    assert engine.pool.num_held == 0


def test_padded_prompt_steps_keep_the_same_residuals(llm, expected, texts):
    drafter = KnowingDrafter(llm.model, texts)
    engine = make(llm, speculate=always("eagle3"), drafter=drafter, eager_prompt_steps=True)
    assert tokens(serve(engine, make_requests({}))) == expected
    assert engine.prompts.num_launched > 0 and drafter.num_drafted > 0


def test_network_knows_a_cached_prefix(llm, expected, texts):
    drafter = KnowingDrafter(llm.model, texts)
    engine = make(llm, speculate=always("eagle3"), drafter=drafter)
    serve(engine, make_requests({})[:1])
    rows = drafter.num_rows
    again = Request(
        request_id="again", token_ids=[*PROMPTS[0], *expected["0"][:4]], params=SamplingParams(max_tokens=8)
    )
    [outputs] = serve(engine, [again]).values()
    assert outputs[-1].num_cached > len(PROMPTS[0]) - 8
    assert [token for output in outputs for token in output.token_ids] == expected["0"][4:12]
    assert drafter.num_rows - rows <= len(again.token_ids) - outputs[-1].num_cached + 8


def test_network_knows_the_prompt_of_a_request_that_ended_with_its_first_step(llm, expected, texts):
    """They were never stored, and later requests with their prompt drafted from what was in the pages."""
    drafter = KnowingDrafter(llm.model, texts)
    engine = make(llm, speculate=always("eagle3"), drafter=drafter)
    serve(engine, make_requests({}, max_tokens=1)[:2])
    outputs = serve(engine, make_requests({}, max_tokens=9)[:2])
    assert all(own[-1].num_cached > 0 for own in outputs.values()) and drafter.num_drafted > 0
    assert tokens(outputs) == {name: expected[name][:9] for name in "01"}


@pytest.mark.parametrize(("steps", "again_after"), [(3, 16), (5, 16), (6, 16), (3, 2), (5, 2)])
def test_network_follows_a_request_again_that_it_had_left(llm, steps, again_after, monkeypatch):
    """It was decoded without the network to its end, and so was each request that continued its text."""
    monkeypatch.setattr("firesteel.engine.speculate.drafting.AGAIN_AFTER", (again_after, again_after))
    request = Request(request_id="0", token_ids=PROMPTS[1], params=SamplingParams(max_tokens=80))
    [text] = tokens(serve(make(llm), [request])).values()
    drafter = KnowingDrafter(llm.model, [[*request.token_ids, *text]], chance=1.0)
    engine = make(llm, speculate=always("eagle3"), drafter=drafter, max_num_seqs=1)
    engine.run_ahead_steps = 6
    engine.submit(request)
    outputs = [output for _ in range(steps) for output in engine.step()]
    engine.speculator._texts["0"].leave(4)
    engine.speculator._pending = None  # steps may be launched ahead at once, up to where it is followed again
    seen, drafted = drafter.num_rows, drafter.num_drafted
    while engine.has_work:
        outputs += engine.step()
    assert [token for output in outputs for token in output.token_ids] == text
    assert drafter.num_gaps > 3 and drafter.num_drafted > drafted
    assert drafter.num_rows - seen < 80 - again_after
    assert engine.totals.accepted_tokens == engine.totals.draft_tokens
    again = Request(request_id="again", token_ids=[*PROMPTS[1], *text[:60]], params=SamplingParams(max_tokens=20))
    gaps = drafter.num_gaps
    assert tokens(serve(engine, [again])) == {"again": text[60:]}
    assert drafter.num_gaps - gaps > 2 and engine.totals.accepted_tokens == engine.totals.draft_tokens


def test_network_reads_the_residuals_of_a_request_that_it_left_and_that_begins_again(llm, monkeypatch):
    """A decoding step was launched ahead of it, and the network read that step's residuals in their place."""
    monkeypatch.setattr(drafting, "MOST_IDLE", 1)
    requests = [
        Request(request_id=str(number), token_ids=prompt, params=SamplingParams(max_tokens=60, cache_prompt=False))
        for number, prompt in enumerate((PROMPTS[2], PROMPTS[1]))
    ]
    expected = tokens(serve(make(llm), requests))
    drafter = KnowingDrafter(
        llm.model, [[*request.token_ids, *expected[request.request_id]] for request in requests]
    )
    speculate = SpeculateConfig(speculate="eagle3")
    engine = make(llm, speculate=speculate, drafter=drafter, pages=49, run_ahead_steps=3)
    engine.speculator.policy.choose = lambda chances, can_rest: [0] * len(chances)
    assert tokens(serve(engine, requests)) == expected
    assert engine.statistics().preemptions > 0 and drafter.num_rows > sum(
        map(len, (PROMPTS[2], PROMPTS[1], PROMPTS[1]))
    )


def test_memory_of_the_network_counts_in_pages(llm, texts):
    drafter = KnowingDrafter(llm.model, texts)
    engine = make(llm, speculate=always("eagle3"), drafter=drafter, pages=40)
    assert engine.totals.pages < 40
    assert engine.totals.cache_bytes // engine.totals.pages - make(llm, pages=40).totals.cache_bytes // 40 == 8 * 4
