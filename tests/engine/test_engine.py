"""The same requests run in different ways give equal tokens, in float32 on a random model."""

import random
from dataclasses import replace

import pytest
import torch

from firesteel import LLM
from firesteel.config import BatchConfig, CacheConfig
from firesteel.device import GIB
from firesteel.engine.cache.kv_cache import page_bytes
from firesteel.engine.engine import Engine
from firesteel.errors import RequestError, UserError
from firesteel.types import Request, SamplingParams
from tests.engine.arrivals import serve, tokens

RNG = random.Random(5)
PROMPTS = [[RNG.randrange(256) for _ in range(length)] for length in (1, 7, 16, 33, 60, 90)]
NEW = 14


def make(llm, *, pages=None, kv_dtype="auto", prefix_caching=True, **batch):
    """Returns a new engine on the model of `llm`; `pages` bounds the cache."""
    config = BatchConfig(**{"page_size": 4, "max_num_seqs": 16, **batch})
    bytes_per_page = page_bytes(llm.spec, config.page_size, torch.float32)
    cache = CacheConfig(
        kv_cache_gib=pages * bytes_per_page / GIB if pages else 0.0,
        kv_dtype=kv_dtype,
        prefix_caching=prefix_caching,
    )
    return Engine(llm.model, llm.device, config, cache, max_context=llm.max_context)


def request(name, token_ids, max_tokens=NEW, **params):
    return Request(
        request_id=str(name), token_ids=token_ids, params=SamplingParams(max_tokens=max_tokens, **params)
    )


def last(made, name):
    return made[str(name)][-1]


@pytest.fixture(scope="module")
def requests():
    return [request(number, prompt) for number, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def alone(llm, requests):
    """Returns the tokens of each request in its own engine, with its prompt in one piece."""
    made = {}
    for request in requests:
        made |= tokens(serve(make(llm, max_num_seqs=1, prefix_caching=False), [request]))
    assert len({tuple(new) for new in made.values()}) == len(PROMPTS)
    return made


def test_batched_equals_alone(llm, requests, alone):
    engine = make(llm)
    assert tokens(serve(engine, requests)) == alone
    assert engine.statistics().largest_step_requests == len(PROMPTS)


@pytest.mark.parametrize("budget", [1, 5, 32])
def test_chunked_equals_whole(llm, requests, alone, budget):
    engine = make(llm, max_num_batched_tokens=budget)
    assert tokens(serve(engine, requests)) == alone
    assert engine.statistics().largest_step_tokens == budget


@pytest.mark.parametrize("page_size", [1, 8, 64])
def test_page_size_does_not_matter(llm, requests, alone, page_size):
    assert tokens(serve(make(llm, page_size=page_size), requests)) == alone


def test_cached_prefix_equals_cold(llm, requests, alone):
    engine = make(llm)
    serve(engine, requests)
    made = serve(engine, requests)
    assert tokens(made) == alone
    for number, prompt in enumerate(PROMPTS):
        assert last(made, number).num_cached == (len(prompt) - 1) // 4 * 4
    again = [request(f"{number}b", prompt) for number, prompt in enumerate(PROMPTS)]
    cold = serve(make(llm, prefix_caching=False), [*requests, *again])
    assert all(outputs[-1].num_cached == 0 for outputs in cold.values())


def test_request_that_wants_no_cache_computes_all_of_its_prompt(llm, alone):
    engine = make(llm)
    serve(engine, [request("first", PROMPTS[4])])
    made = serve(engine, [request("cold", PROMPTS[4], cache_prompt=False), request("warm", PROMPTS[4])])
    assert (last(made, "cold").num_cached, last(made, "warm").num_cached > 0) == (0, True)
    assert tokens(made)["cold"] == tokens(made)["warm"] == alone["4"]


def test_request_that_wants_no_cache_leaves_nothing_in_it(llm):
    """Its pages were published: a later request could tell by its first token that someone had asked the same."""
    engine = make(llm)
    serve(engine, [request("first", PROMPTS[4], cache_prompt=False)])
    assert engine.pool.num_idle == 0
    assert last(serve(engine, [request("second", PROMPTS[4])]), "second").num_cached == 0


def test_salts_keep_cached_prefixes_apart(llm, alone):
    engine = make(llm)
    plain = request("0", PROMPTS[4])
    salts = ["", "a", "b", "a", "", "b"]
    asked = [replace(plain, request_id=str(number), cache_salt=salt) for number, salt in enumerate(salts)]
    made = [serve(engine, [asked_now]) for asked_now in asked]
    cached = [last(outputs, number).num_cached > 0 for number, outputs in enumerate(made)]
    assert cached == [False, False, False, True, True, True]
    assert all(tokens(outputs)[str(number)] == alone["4"] for number, outputs in enumerate(made))


def test_continued_text_finds_what_was_generated(llm, alone):
    engine = make(llm)
    serve(engine, [request("first", PROMPTS[3])])
    text = [*PROMPTS[3], *alone["3"]]
    made = serve(engine, [request("second", text)])
    assert last(made, "second").num_cached == len(text) - 1  # the last token is not computed
    fresh = serve(make(llm, prefix_caching=False), [request("second", text)])
    assert tokens(made) == tokens(fresh)


def test_preempted_equals_uninterrupted(llm, requests, alone):
    engine = make(llm, pages=32)
    made = serve(engine, requests)
    assert tokens(made) == alone
    assert engine.statistics().preemptions > 0
    assert sum(last(made, number).statistics.preemptions for number in range(len(PROMPTS))) > 0


def test_order_of_arrival_does_not_matter(llm, requests, alone):
    rng = random.Random(1)
    for _ in range(3):
        order = rng.sample(requests, len(requests))
        at = [rng.randrange(20) for _ in requests]
        assert tokens(serve(make(llm, max_num_batched_tokens=24), order, at=at)) == alone


def test_same_seed_gives_the_same_tokens_whatever_else_runs(llm):
    drawn = [request(i, prompt, temperature=1.0, seed=i) for i, prompt in enumerate(PROMPTS)]
    expected = {}
    for single in drawn:
        expected |= tokens(serve(make(llm, max_num_seqs=1), [single]))
    engine = make(llm, pages=40, max_num_batched_tokens=19)
    assert tokens(serve(engine, drawn, at=[5, 3, 0, 9, 1, 2])) == expected
    assert engine.statistics().preemptions > 0
    other = tokens(serve(make(llm), [request(0, PROMPTS[0], temperature=1.0, seed=77)]))
    assert other["0"] != expected["0"]


def test_cancelled_requests_leave_no_trace(llm, requests, alone):
    engine = make(llm)
    for request in requests:
        engine.submit(request)
    for _ in range(4):
        engine.step()
    assert engine.cancel("1") and engine.cancel("4") and not engine.cancel("4")
    made = {}
    while engine.has_work:
        for output in engine.step():
            made[output.request_id] = output
    assert set(made) == {"0", "2", "3", "5"}
    statistics = engine.statistics()
    assert (statistics.pages_held, statistics.requests_cancelled, statistics.requests_finished) == (0, 2, 4)
    assert tokens(serve(engine, requests)) == alone


def test_request_larger_than_the_cache_is_refused_and_the_next_runs(llm, alone):
    engine = make(llm, pages=20)
    with pytest.raises(RequestError, match="pages of the cache, which has 20"):
        engine.submit(request("large", [1] * 80))
    with pytest.raises(RequestError, match="exceed the context of 256"):
        engine.submit(request("long", [1] * 250))
    for odd in (272, -1):
        with pytest.raises(RequestError, match=f"request odd: token id {odd} is outside the vocabulary of 272"):
            engine.submit(request("odd", [1, odd, 2]))
    with pytest.raises(UserError, match="outside the vocabulary"):
        engine.submit(request("odd", [1], logit_bias={5000: 1.0}))
    assert not engine.has_work
    assert tokens(serve(engine, [request("1", PROMPTS[1])])) == {"1": alone["1"]}


def test_step_without_work_gives_nothing(llm):
    engine = make(llm)
    assert engine.step() == [] and engine.statistics().steps == 0


def test_scored_prompt_equals_greedy_and_leaves_generation_alone(llm, requests, alone, score):
    engine = make(llm, max_num_batched_tokens=16)
    text = [*PROMPTS[3], *alone["3"]]
    rows = score(engine, text)
    assert rows.shape == (len(text), 272)
    assert rows[len(PROMPTS[3]) - 1 : -1].argmax(-1).tolist() == alone["3"]
    assert torch.equal(rows, score(engine, text)), "cached pages must not shorten a score"


@pytest.mark.parametrize("pages", [None, 40])
def test_prompt_logprobs_are_those_of_the_logits_chunked_or_preempted(llm, alone, score, pages):
    prompt = PROMPTS[4]
    rows = score(make(llm), prompt).log_softmax(-1)
    expected = [float(rows[i, token]) for i, token in enumerate(prompt[1:])]
    engine = make(llm, pages=pages, max_num_batched_tokens=13)
    others = [request(f"o{number}", PROMPTS[number]) for number in (2, 3)]
    made = serve(engine, [*others, request("4", prompt, prompt_logprobs=2, logprobs=1)])
    scored = [token for output in made["4"] for token in output.prompt_logprobs or ()]
    assert [token.token_id for token in scored] == prompt[1:] and all(len(token.top) == 2 for token in scored)
    assert [token.logprob for token in scored] == pytest.approx(expected, abs=1e-4)
    assert tokens(made)["4"] == alone["4"]
    new = [output.logprobs for output in made["4"] if output.token_ids]
    assert [token.token_id for token in new] == alone["4"] and all(
        token.top[0][0] == token.token_id for token in new
    )


def test_mask_allows_what_it_says_after_each_token(llm, alone):
    class Alternate:
        def __init__(self):
            self.seen = []

        def is_ready(self, token_ids):
            return True

        def allowed(self, token_ids):
            self.seen.append(list(token_ids))
            mask = torch.zeros(272, dtype=torch.bool)
            mask[len(token_ids) % 2 :: 2] = True
            return mask if len(token_ids) < 10 else None

    mask = Alternate()
    masked = Request(request_id="m", token_ids=PROMPTS[2], params=SamplingParams(max_tokens=12), mask=mask)
    made = tokens(serve(make(llm), [masked, request("2", PROMPTS[2])]))
    assert [token % 2 for token in made["m"][:10]] == [0, 1] * 5
    assert mask.seen == [made["m"][:count] for count in range(12)]
    assert made["2"] == alone["2"]


def test_row_that_cannot_be_drawn_ends_its_request_only(llm, alone):
    class Nothing:
        def is_ready(self, token_ids):
            return True

        def allowed(self, token_ids):
            return torch.zeros(272, dtype=torch.bool)

    masked = Request(request_id="m", token_ids=PROMPTS[2], params=SamplingParams(), mask=Nothing())
    made = serve(make(llm), [masked, request("2", PROMPTS[2])])
    assert last(made, "m").finish_reason == "refused" and "request m" in last(made, "m").error
    assert tokens(made)["2"] == alone["2"]


def test_stop_token_ends_a_request_with_that_reason(llm, alone):
    stop = alone["3"][5]
    request = Request(request_id="3", token_ids=PROMPTS[3], params=SamplingParams(), stops=frozenset([stop]))
    made = serve(make(llm), [request])
    assert tokens(made)["3"] == alone["3"][: alone["3"].index(stop) + 1]
    assert last(made, 3).finish_reason == "stop"


def test_statistics_add_up(llm, requests):
    engine = make(llm)
    made = serve(engine, requests)
    statistics = engine.statistics()
    assert statistics.requests_finished == 6 and statistics.requests_running == statistics.requests_waiting == 0
    assert (statistics.prompt_tokens, statistics.output_tokens) == (sum(map(len, PROMPTS)), 6 * NEW)
    assert statistics.step_tokens == sum(map(len, PROMPTS)) + 6 * (NEW - 1)
    assert statistics.pages_held == 0 and statistics.pages_idle > 50 and statistics.pages == engine.pool.num_pages
    assert statistics.cache_bytes == statistics.pages * page_bytes(llm.spec, 4, torch.float32)
    assert min(statistics.schedule_s, statistics.build_s, statistics.run_s, statistics.wait_s) > 0
    every = [last(made, number).statistics for number in range(6)]
    assert statistics.first_token_s == pytest.approx(sum(each.first_token_s for each in every))
    assert all(0 <= each.queue_s <= each.first_token_s and each.token_s > 0 for each in every)
    assert all(output.statistics is None for outputs in made.values() for output in outputs[:-1])


def test_bf16_pages_change_logits_a_little_and_fp8_a_little_more(llm, score):
    exact = score(make(llm), PROMPTS[4])
    errors = {}
    for kind in ("bf16", "fp8"):
        engine = make(llm, kv_dtype=kind)
        errors[kind] = float((score(engine, PROMPTS[4]) - exact).norm() / exact.norm())
        assert engine.statistics().saturated_values == 0
    assert 1e-5 < errors["bf16"] < 1e-2 < errors["fp8"] < 0.2


def test_fp8_clips_what_is_too_large_and_counts_it(open_llm, score):
    llm = open_llm()
    llm.model.weights.layers[1].qkv_bias[-3:] = torch.tensor([600.0, -600.0, 300.0]).bfloat16()  # values come last
    engine = make(llm, kv_dtype="fp8")
    assert score(engine, PROMPTS[3]).isfinite().all()
    assert engine.statistics().saturated_values == 2 * len(PROMPTS[3])


def test_64_mixed_requests_finish_in_a_small_cache(llm, alone):
    rng = random.Random(2)
    many = [request(i, PROMPTS[i % 6], max_tokens=rng.randrange(1, NEW + 1)) for i in range(64)]
    made = tokens(serve(make(llm, pages=80, max_num_seqs=8, max_num_batched_tokens=40), many))
    assert made == {str(i): alone[str(i % 6)][: request.params.max_tokens] for i, request in enumerate(many)}


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cpu")


@pytest.fixture(scope="module")
def sentences(kindling):
    texts = (
        "The capital of France is",
        "Two plus three is",
        "The opposite of hot is",
        "A list of the months: January, February, March, April, May, June, July, August,",
    )
    return [request(i, kindling.tokenizer.encode(text), max_tokens=10) for i, text in enumerate(texts)]


def test_kindling_gives_the_same_batched_chunked_cached_and_preempted(kindling, sentences):
    """The prompts are short, so pages hold 4 tokens."""
    alone = {}
    for request in sentences:
        alone |= tokens(serve(make(kindling, max_num_seqs=1, prefix_caching=False), [request]))
    engine = make(kindling, page_size=4)
    assert tokens(serve(engine, sentences)) == alone
    assert tokens(serve(engine, sentences)) == alone and engine.statistics().cached_tokens > 0
    assert tokens(serve(make(kindling, max_num_batched_tokens=5), sentences, at=[3, 0, 2, 1])) == alone
    small = make(kindling, pages=24)
    assert tokens(serve(small, sentences)) == alone and small.statistics().preemptions > 0


def test_second_turn_of_a_long_chat_is_nine_tenths_cached(kindling):
    rng = random.Random(3)
    first = [rng.randrange(4000) for _ in range(1500)]
    engine = make(kindling, page_size=64, max_num_batched_tokens=1024)
    made = tokens(serve(engine, [request("turn 1", first, max_tokens=40, ignore_eos=True)]))
    second = [*first, *made["turn 1"], *[rng.randrange(4000) for _ in range(60)]]
    outputs = serve(engine, [request("turn 2", second, max_tokens=2)])
    assert last(outputs, "turn 2").statistics.cached_tokens >= 0.9 * len(second)


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_gpu_engine_batches_preempts_and_caches(kv_dtype):
    """Rounding in bf16 may decide between two tokens that are almost equally likely: most must be the same."""
    llm = LLM(device="cuda", kv_cache_gib=0.5)
    prompts = [[(7 * i + j) % 4000 for j in range(40 + 9 * i)] for i in range(8)]
    many = [request(i, prompt, max_tokens=24, ignore_eos=True) for i, prompt in enumerate(prompts)]
    alone = {}
    for single in many:
        alone |= tokens(serve(make(llm, page_size=16, kv_dtype=kv_dtype, max_num_seqs=1), [single]))
    engine = make(llm, page_size=16, kv_dtype=kv_dtype, max_num_batched_tokens=64)
    for _ in range(2):
        made = tokens(serve(engine, many))
        same = sum(made[name] == alone[name] for name in alone)
        assert same >= 5 and all(len(new) == 24 for new in made.values())
    assert engine.statistics().cached_tokens > 0


def test_engine_resolves_the_most_requests_that_run_together(llm):
    assert make(llm, max_num_seqs=0).config.max_num_seqs == 64
