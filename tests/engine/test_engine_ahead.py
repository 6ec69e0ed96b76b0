"""Steps launched before the tokens of earlier steps are read: results of requests do not change."""

import random

import pytest
import torch

from firesteel import LLM
from firesteel.config import BatchConfig, CacheConfig
from firesteel.device import GIB
from firesteel.engine.cache.kv_cache import page_bytes
from firesteel.engine.engine import Engine
from firesteel.engine.step import step_sizes
from firesteel.engine.step.decode_loop import DecodeLoop
from firesteel.engine.step.step_store import FusedOps
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.network_step import NetworkStep
from firesteel.types import Request, SamplingParams
from tests.engine.arrivals import serve, tokens

RNG = random.Random(5)
PROMPTS = [[RNG.randrange(256) for _ in range(length)] for length in (1, 7, 16, 33, 60, 90)]
NEW = 14
WAYS = [(0, False), (1, False), (3, False), (4, True), (0, True)]  # steps ahead, and whether in fused ops


def make(llm, ahead, fused=False, *, pages=None, prefix_caching=True, kv_dtype="auto", **batch):
    config = BatchConfig(**{"page_size": 4, "max_num_seqs": 16, **batch})
    bytes_per_page = page_bytes(llm.spec, config.page_size, torch.float32)
    cache = CacheConfig(
        kv_cache_gib=pages * bytes_per_page / GIB if pages else 0.0,
        prefix_caching=prefix_caching,
        kv_dtype=kv_dtype,
    )
    ops = FusedOps(ops=DecodeOps.choose(llm.device, llm.kernels.ledger), is_asked=True) if fused else None
    return Engine(
        llm.model, llm.device, config, cache, max_context=llm.max_context, fused=ops, run_ahead_steps=ahead
    )


def request(name, token_ids, max_tokens=NEW, *, stops=(), mask=None, **params):
    return Request(
        request_id=str(name),
        token_ids=token_ids,
        params=SamplingParams(max_tokens=max_tokens, **params),
        stops=frozenset(stops),
        mask=mask,
    )


def check_pages(engine):
    """Checks that no page is held without a request."""
    assert engine.pool.num_held == 0 and not any(engine.pool.holders)


@pytest.fixture(scope="module")
def requests():
    return [request(number, prompt) for number, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def plainly():
    """Returns plainly(llm, requests), which gives outputs of each alone, every step op by op from a new batch."""

    def compute(llm, requests):
        made = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DecodeLoop, "takes", lambda self, plan: False)
            for request in requests:
                made |= serve(make(llm, 0, max_num_seqs=1, prefix_caching=False), [request])
        return made

    return compute


@pytest.fixture(scope="module")
def alone(llm, plainly, requests):
    return tokens(plainly(llm, requests))


@pytest.mark.parametrize(("ahead", "fused"), WAYS)
def test_tokens_are_the_same_batched_late_and_with_a_small_cache(llm, requests, alone, ahead, fused):
    engine = make(llm, ahead, fused)
    assert tokens(serve(engine, requests)) == alone
    assert tokens(serve(engine, requests, at=[4, 0, 9, 2, 3, 1])) == alone and engine.statistics().cached_tokens > 0
    check_pages(engine)
    small = make(llm, ahead, fused, pages=32)
    assert tokens(serve(small, requests)) == alone and small.statistics().preemptions > 0
    check_pages(small)


@pytest.mark.parametrize("page_size", [1, 8, 64])
def test_page_size_does_not_matter(llm, requests, alone, page_size):
    for fused in (False, True):
        assert tokens(serve(make(llm, 3, fused, page_size=page_size), requests)) == alone


def test_steps_are_launched_ahead_and_read_behind(llm, requests):
    engine = make(llm, 3)
    engine.submit(requests[1])
    assert len(engine.step()) == 1, "the prompt"
    launched = []
    while engine.has_work:
        engine.step()
        launched.append(len(engine.in_flight.launched))
    assert launched == [3] * 9 + [3, 2, 1, 0], "the last token is known to be the last"


def test_new_request_joins_after_the_steps_that_are_launched(llm, requests, alone):
    engine = make(llm, 3)
    engine.submit(requests[1])
    for _ in range(4):
        engine.step()
    engine.submit(requests[2])
    given = [[output.request_id for output in engine.step()] for _ in range(5)]
    assert given == [["1"], ["1"], ["1"], ["1", "2"], ["1", "2"]]


def test_waiting_request_without_room_does_not_stop_steps_from_running_ahead(llm, requests, alone):
    """A request waits that cannot join."""
    engine = make(llm, 3, max_num_seqs=2)
    for request in requests[:3]:
        engine.submit(request)
    for _ in range(4):
        engine.step()
    assert len(engine.in_flight.launched) == 3 and len(engine.scheduler.waiting) == 1


@pytest.mark.parametrize(("ahead", "fused"), WAYS)
def test_stop_found_late_discards_the_surplus(llm, plainly, alone, ahead, fused):
    stop = alone["3"][5]
    many = [request(number, prompt, stops=[stop], max_tokens=40) for number, prompt in enumerate(PROMPTS)]
    expected = plainly(llm, many)
    engine = make(llm, ahead, fused)
    made = serve(engine, many)
    assert tokens(made) == tokens(expected)
    assert [made[name][-1].finish_reason for name in made] == [expected[name][-1].finish_reason for name in made]
    assert "stop" in {outputs[-1].finish_reason for outputs in made.values()}
    check_pages(engine)


def test_surplus_tokens_are_never_found_as_a_prefix(llm, alone):
    """What surplus tokens wrote must not be found; a text with a different end is computed again."""
    text = [*PROMPTS[3], *alone["3"]]
    for count in range(1, 9):
        stop = alone["3"][count - 1]
        if stop in alone["3"][: count - 1]:
            continue
        engine = make(llm, 4)
        serve(engine, [request("first", PROMPTS[3], stops=[stop])])
        cached = serve(engine, [request("second", text[: len(PROMPTS[3]) + 9], max_tokens=3)])
        computed = len(PROMPTS[3]) + count - 1  # the stop token is drawn, not computed
        assert cached["second"][-1].num_cached == min(computed, len(PROMPTS[3]) + 8)
        assert tokens(cached)["second"] == alone["3"][9:12]


@pytest.mark.parametrize("fused", [False, True])
def test_cancelled_request_leaves_and_may_come_again_under_its_name(llm, requests, alone, fused):
    engine = make(llm, 4, fused)
    for request in requests[1:4]:
        engine.submit(request)
    for _ in range(4):
        engine.step()
    assert engine.in_flight.launched and engine.cancel("2")
    engine.submit(requests[2])  # the very same object, while tokens of the first are in flight
    made = {name: [] for name in ("1", "2", "3")}
    while engine.has_work:
        for output in engine.step():
            made[output.request_id].append(output)
    assert tokens(made)["2"] == alone["2"]
    check_pages(engine)
    again = serve(engine, requests, cancel={"0": 3, "5": 6, "1": 7})
    assert {name: tokens(again)[name] for name in ("2", "3", "4")} == {
        name: alone[name] for name in ("2", "3", "4")
    }
    assert tokens(again)["5"] == alone["5"][: len(tokens(again)["5"])] and len(tokens(again)["5"]) < NEW
    check_pages(engine)


def test_idle_engine_drops_steps_without_requests(llm, requests, alone):
    engine = make(llm, 4)
    engine.submit(requests[1])
    for _ in range(3):
        engine.step()
    assert engine.in_flight.launched and engine.cancel("1") and not engine.has_work
    assert engine.step() == [] and not engine.in_flight.launched
    assert tokens(serve(engine, [requests[2]])) == {"2": alone["2"]}


PARAMS = {
    "seed": {"temperature": 1.0, "seed": 7},
    "top_p": {"temperature": 0.8, "top_p": 0.7, "top_k": 40, "seed": 1},
    "min_tokens": {"min_tokens": 6},
    "bias": {"logit_bias": {5: 3.0, 9: -100.0}},
    "allowed": {"allowed_token_ids": tuple(range(0, 272, 3))},
    "logprobs": {"logprobs": 3},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "greedy": {},
}


@pytest.mark.parametrize(("ahead", "fused"), WAYS)
def test_sampling_options_give_the_same_results(llm, plainly, alone, ahead, fused):
    many = [
        request(name, PROMPTS[2 + number % 3], stops=alone["3"][2:6], max_tokens=20, **params)
        for number, (name, params) in enumerate(PARAMS.items())
    ]
    expected = plainly(llm, many)
    engine = make(llm, ahead, fused)
    for made in (serve(engine, many), *(serve(engine, [request]) for request in many)):
        assert tokens(made) == {name: tokens(expected)[name] for name in made}
        for name, outputs in made.items():
            assert [output.finish_reason for output in outputs] == [
                output.finish_reason for output in expected[name]
            ]
    ours = [output.logprobs for output in serve(engine, [many[5]])["logprobs"]]
    theirs = [output.logprobs for output in expected["logprobs"]]
    assert [token.token_id for token in ours] == [token.token_id for token in theirs]
    assert [token.logprob for token in ours] == pytest.approx([token.logprob for token in theirs], abs=1e-4)
    assert all(len(token.top) == 3 for token in ours)
    check_pages(engine)


class Alternate:
    """Allows even tokens, then odd ones; records the tokens that it was asked about."""

    def __init__(self):
        self.seen = []

    def is_ready(self, token_ids):
        return True

    def allowed(self, token_ids):
        self.seen.append(list(token_ids))
        mask = torch.zeros(272, dtype=torch.bool)
        mask[len(token_ids) % 2 :: 2] = True
        return mask


def test_masks_and_penalties_see_every_token_before_the_next_is_drawn(llm, plainly, requests):
    expected = tokens(plainly(llm, [request("m", PROMPTS[2], mask=Alternate())]))
    mask = Alternate()
    engine = make(llm, 4)
    engine.submit(requests[3])
    engine.submit(request("m", PROMPTS[2], mask=mask))
    made = {"3": [], "m": []}
    while engine.has_work:
        for output in engine.step():
            made[output.request_id].append(output)
        if "m" in engine.scheduler.jobs:
            assert not engine.in_flight.launched, "nothing runs ahead of a mask"
    assert tokens(made)["m"] == expected["m"]
    assert mask.seen == [expected["m"][:count] for count in range(NEW)]


def test_broken_logits_end_the_request_with_an_error(open_llm):
    llm = open_llm()
    for fused in (False, True):
        engine = make(llm, 3, fused)
        engine.submit(request("a", PROMPTS[2]))
        for _ in range(2):
            engine.step()
        norm = llm.model.weights.norm
        kept = norm.clone()
        norm.fill_(float("nan"))
        outputs = []
        while engine.has_work:
            outputs += engine.step()
        norm.copy_(kept)
        assert outputs[-1].finish_reason == "error" and "NaN or infinity" in outputs[-1].error
        check_pages(engine)


def test_many_requests_run_padded_and_padding_changes_nothing(llm, alone):
    many = [request(i, PROMPTS[i % 6], max_tokens=3 + i % 12) for i in range(21)]
    engine = make(llm, 3, max_num_seqs=64, max_num_batched_tokens=4096)
    assert tokens(serve(engine, many)) == {
        str(i): alone[str(i % 6)][: request.params.max_tokens] for i, request in enumerate(many)
    }
    assert engine.loop.store.find(21, 100).step.num_requests == 24
    check_pages(engine)


def test_padding_writes_into_the_idle_page_only(llm):
    engine = make(llm, 0, max_num_seqs=64)
    cache = engine.runner.cache
    for pages in (*cache.keys, *cache.values):
        pages.fill_(7.0)
    step = NetworkStep(
        llm.model,
        cache,
        num_requests=18,
        num_pages=8,
        idle_page=engine.pool.num_pages,
        logits=torch.empty(18, 272),
    )
    for _ in range(3):
        step.run()
    assert step.batch.positions.tolist() == [0] * 18
    for pages in (*cache.keys, *cache.values):
        assert (pages[:-1] == 7.0).all() and (pages[-1] != 7.0).any()


def test_texts_outgrow_narrow_page_tables(kindling, monkeypatch):
    """Page tables hold 1024 tokens at first, then more."""
    monkeypatch.setattr(step_sizes, "LEAST_TOKENS", 1024)
    prompt = [RNG.randrange(4000) for _ in range(1015)]
    long = request("long", prompt, max_tokens=24, ignore_eos=True)
    engines = {ahead: make(kindling, ahead, page_size=64) for ahead in (0, 3)}
    made = {ahead: tokens(serve(engine, [long])) for ahead, engine in engines.items()}
    assert made[0] == made[3] and len(made[0]["long"]) == 24
    assert len(engines[3].loop.store.ready()) == 2


def test_fp8_pages_run_ahead_in_the_network(llm, requests):
    made = [tokens(serve(make(llm, ahead, kv_dtype="fp8"), requests)) for ahead in (0, 3)]
    assert made[0] == made[1]


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cpu")


def test_kindling_gives_the_same_tokens_with_and_without_run_ahead(kindling):
    texts = ("The capital of France is", "Two plus three is", "The opposite of hot is", "one, two, three,")
    many = [
        request(i, kindling.tokenizer.encode(text), max_tokens=12, stops=kindling.stop_ids)
        for i, text in enumerate(texts)
    ]
    made = [tokens(serve(make(kindling, *way), many)) for way in ((0, False), (3, False), (3, True))]
    assert made[0] == made[1] == made[2]
