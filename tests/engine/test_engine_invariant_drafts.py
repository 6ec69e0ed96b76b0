"""Batch invariance with drafts, masks, salts of the cache, FP8 pages and repeated prompts."""

import random

import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig, KernelConfig, SpeculateConfig
from firesteel.device import GIB
from firesteel.engine.cache.kv_cache import find_dtype, find_layout, page_bytes
from firesteel.engine.engine import Engine
from firesteel.measure.tokens.logit_bits import compare_logits, record_logits
from firesteel.types import Request, SamplingParams
from tests.engine.test_engine_invariant import draws, prompt_scores, run
from tests.engine.test_engine_speculate import script

MASKED = "masked"
KINDS = (
    {},
    {"temperature": 1.0, "seed": 5},
    {"prompt_logprobs": 2},
    {"logprobs": 3},
    {"logprobs": 2, "temperature": 0.7, "seed": 9, "top_p": 0.8},
    {"frequency_penalty": 1.0},
    {MASKED: True},
    {MASKED: True, "temperature": 1.0, "seed": 3, "logprobs": 1},
    {"logit_bias": {7: 2.0}},
    {"min_tokens": 2, "cache_prompt": False, "logprobs": 1},
    {"bad_words": ((3,),)},
)


class Mask:
    """Allows every fifth token; which ones depends on how many there are, as with a grammar."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def allowed(self, token_ids):
        row = torch.zeros(self.vocab_size, dtype=torch.bool)
        row[len(token_ids) * 7 % 5 :: 5] = True
        return row

    def is_ready(self, token_ids):
        return True

    def count_allowed(self, token_ids, draft_ids):
        for count, draft in enumerate(draft_ids):
            if not self.allowed([*token_ids, *draft_ids[:count]])[draft]:
                return count
        return len(draft_ids)

    def allowed_along(self, token_ids, draft_ids):
        return [self.allowed([*token_ids, *draft_ids[:count]]) for count in range(len(draft_ids) + 1)]


def draw_requests(vocab_size, seed, count=10, longest=60, most_tokens=14):
    """Draws requests of all kinds; prompts repeat themselves, equal the one before or begin like it."""
    rng, prompts, requests = random.Random(seed), [], []
    for number in range(count):
        params = dict(KINDS[(number + seed) % len(KINDS)])
        mask = Mask(vocab_size) if params.pop(MASKED, False) else None
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, longest))]
        kind = rng.random()
        if prompts and kind < 0.3:
            prompt = (prompts[-1][: rng.randint(1, len(prompts[-1]))] + prompt)[:longest]
        elif prompts and kind < 0.45:  # as with n > 1
            prompt = list(prompts[-1])
        elif kind < 0.7:
            prompt = (prompt[: rng.randint(1, 5)] * longest)[: rng.randint(5, longest)]
        prompts.append(prompt)
        requests.append(
            Request(
                request_id=str(number),
                token_ids=prompt,
                mask=mask,
                cache_salt=rng.choice(("", "", "a")),
                params=SamplingParams(max_tokens=rng.randint(2, most_tokens), ignore_eos=True, **params),
            )
        )
    return requests


def make_engine(llm, requests, kv_dtype, rng=None, speculate=None):
    """Returns an engine that keeps its logits: with random settings, or for one request at a time."""
    lengths = [request.num_prompt + request.params.max_tokens for request in requests]
    page_size = rng.choice((1, 2, 4, 8, 16)) if rng else 16
    batch = BatchConfig(
        page_size=page_size,
        max_num_seqs=rng.randint(2, len(requests)) if rng else 1,
        max_num_batched_tokens=rng.choice((len(requests), 17, 24, 300)) if rng else sum(lengths),
    )
    pages = max(find_layout(llm.spec, page_size).count_pages(length) for length in lengths)
    pages += rng.choice((2, 4, 200)) if rng else 200
    bytes_per_page = page_bytes(llm.spec, page_size, find_dtype(kv_dtype, llm.device))
    engine = Engine(
        llm.model,
        llm.device,
        batch,
        CacheConfig(
            kv_dtype=kv_dtype,
            kv_cache_gib=(pages + 0.5) * bytes_per_page / GIB,
            prefix_caching=bool(rng and rng.random() < 0.8),
        ),
        max_context=llm.max_context,
        kernels=KernelConfig(batch_invariant=True, prefill_graphs=not rng or rng.random() < 0.5),
        speculate=speculate,
        run_ahead_steps=rng.randint(0, 4) if rng else 0,
        eager_prompt_steps=bool(rng and rng.random() < 0.7),
    )
    record_logits(engine)
    return engine


def check_schedules(llm, kv_dtype, seeds, schedules, drafts):
    """Checks random schedules of the requests of each seed; returns preemptions, cached and accepted tokens."""
    counts = [0, 0, 0]
    for seed in seeds:
        requests = draw_requests(llm.spec.vocab_size, seed)
        logits, outputs = {}, {}
        for request in requests:
            ours, theirs = run(make_engine(llm, [request], kv_dtype), [(0, request)])
            logits |= ours
            outputs |= theirs
        texts = {name: ids for name, (ids, _) in flatten(outputs).items()}
        for schedule in range(schedules):
            rng = random.Random(1000 * seed + schedule)
            speculate = SpeculateConfig(
                speculate="ngram", adapt_speculation=False, num_speculative_tokens=rng.randint(1, 4)
            )
            engine = make_engine(llm, requests, kv_dtype, rng, speculate if drafts else None)
            if drafts:  # of a random model's text hardly any words repeat
                script(engine, texts, most=4)
            for _ in range(2):  # the second time, prefixes are cached
                order = rng.sample(requests, len(requests))
                ours, theirs = run(engine, [(rng.randint(0, 20), request) for request in order])
                shared = {key: row for key, row in logits.items() if key in ours}  # drafted rows are not kept
                bits = compare_logits(shared, ours)
                assert bits.rows > len(logits) // 2 and bits.bits_differing == 0, (seed, schedule, bits)
                assert flatten(theirs) == flatten(outputs), (seed, schedule)
                assert prompt_scores(theirs) == prompt_scores(outputs), (seed, schedule)
                counts[1] += sum(output[-1].num_cached for output in theirs.values())
            statistics = engine.statistics()
            counts[0] += statistics.preemptions
            counts[2] += statistics.accepted_tokens
    return counts


def flatten(outputs):
    """Returns all tokens and all logprobs of each request, in however many outputs they came."""
    return {
        name: ([token for ids, _ in given for token in ids], [scores for _, scores in given if scores])
        for name, given in draws(outputs).items()
    }


@pytest.mark.parametrize("drafts", [False, True], ids=["no drafts", "drafts"])
def test_requests_of_all_kinds_have_the_bits_that_they_have_alone(open_llm, drafts):
    llm = open_llm(batch_invariant=True)
    _, cached, accepted = check_schedules(llm, "auto", (2,), 2, drafts)
    assert cached > 0 and (accepted > 0) is drafts


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("drafts", [False, True], ids=["no drafts", "drafts"])
def test_many_requests_of_all_kinds_have_the_bits_that_they_have_alone(open_llm, kv_dtype, drafts):
    llm = open_llm(batch_invariant=True, kv_dtype=kv_dtype)
    preempted, cached, accepted = check_schedules(llm, kv_dtype, range(6), 3, drafts)
    assert preempted > 0 and cached > 0 and (accepted > 0) is drafts
