"""Batch invariance: the logits of a request have the same bits in every schedule."""

import random

import pytest
import torch

from firesteel import LLM, UserError
from firesteel.config import BatchConfig, CacheConfig, KernelConfig
from firesteel.device import GIB
from firesteel.engine.cache.kv_cache import find_dtype, find_layout, page_bytes
from firesteel.engine.engine import Engine
from firesteel.engine.invariance import check_invariance
from firesteel.measure.tokens.logit_bits import compare_logits, record_logits
from firesteel.types import Request, SamplingParams

KINDS = (
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.8, "seed": 6, "top_p": 0.9},
    {"temperature": 1.2, "seed": 7, "top_k": 20, "min_p": 0.01},
    {"prompt_logprobs": 1},
    {"frequency_penalty": 1.0, "repetition_penalty": 1.2},
)


@pytest.fixture(scope="module")
def invariant(open_llm):
    return open_llm(batch_invariant=True)


def draw_requests(vocab_size, count, longest, most_tokens, seed):
    """Draws requests of all kinds; every third prompt begins like the one before it."""
    rng = random.Random(seed)
    prompts = []
    for number in range(count):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, longest))]
        if number % 3 == 2:
            prompt = (prompts[-1][: rng.randint(1, len(prompts[-1]))] + prompt)[:longest]
        prompts.append(prompt)
    return [
        Request(
            request_id=str(number),
            token_ids=prompt,
            params=SamplingParams(
                max_tokens=rng.randint(2, most_tokens), logprobs=2, ignore_eos=True, **KINDS[number % len(KINDS)]
            ),
        )
        for number, prompt in enumerate(prompts)
    ]


def make_engine(llm, requests, rng=None, at_once=1):
    """Returns an engine that keeps its logits: with random settings, or for `at_once` requests at a time."""
    lengths = [request.num_prompt + request.params.max_tokens for request in requests]
    sizes = (1, 4, 8, 16) if max(lengths) < 100 else (16, 64)
    page_size = rng.choice(sizes) if rng else 64
    if llm.device.is_cuda:  # there a tile of keys, and with it the order of sums, fits into a page
        page_size = llm.settings.config.batch.page_size
    batch = BatchConfig(
        page_size=page_size,
        max_num_seqs=rng.randint(1, len(requests)) if rng else at_once,
        max_num_batched_tokens=rng.choice((len(requests), 24, 300)) if rng else sum(lengths),
    )
    pages = max(find_layout(llm.spec, page_size).count_pages(length) for length in lengths)
    pages += rng.choice((2, 2, 200)) if rng else 200
    bytes_per_page = page_bytes(llm.spec, page_size, find_dtype("auto", llm.device))
    cache = CacheConfig(
        kv_cache_gib=(pages + 0.5) * bytes_per_page / GIB, prefix_caching=bool(rng and rng.random() < 0.7)
    )
    engine = Engine(
        llm.model,
        llm.device,
        batch,
        cache,
        max_context=llm.max_context,
        # On a GPU, random schedules are captured and requests alone are not.
        kernels=KernelConfig(
            batch_invariant=True, cuda_graphs=rng is not None, prefill_graphs=not rng or rng.random() < 0.5
        ),
        run_ahead_steps=rng.randint(0, 4) if rng else 0,
        eager_prompt_steps=bool(rng and rng.random() < 0.7),
    )
    record_logits(engine)
    return engine


def run(engine, arrivals):
    """Returns the logits, by request and position, and the outputs, by request; arrivals are (step, request)."""
    waiting, outputs, step = sorted(arrivals, key=lambda arrival: -arrival[0]), {}, 0
    while waiting or engine.has_work:
        while waiting and (waiting[-1][0] <= step or not engine.has_work):
            engine.submit(waiting.pop()[1])
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        step += 1
    return engine.sampler.kept, outputs


def run_alone(llm, requests):
    logits, outputs = {}, {}
    for request in requests:
        ours, theirs = run(make_engine(llm, [request]), [(0, request)])
        logits |= ours
        outputs |= theirs
    return logits, outputs


def draws(outputs):
    """Returns tokens and logprobs, whose bits must be equal, too."""
    return {
        name: [
            (output.token_ids, output.logprobs and (output.logprobs.logprob, output.logprobs.top))
            for output in given
            if output.token_ids
        ]
        for name, given in outputs.items()
    }


def prompt_scores(outputs):
    return {
        name: [score for output in given for score in output.prompt_logprobs or ()]
        for name, given in outputs.items()
    }


def check_schedules(llm, requests, seeds):
    """Checks that random schedules give every request the bits that it has alone; returns what occurred in them."""
    logits, outputs = run_alone(llm, requests)
    preempted = cached = 0
    for seed in seeds:
        rng = random.Random(seed)
        engine = make_engine(llm, requests, rng)
        for _ in range(2):  # the second time, prefixes are cached
            order = rng.sample(requests, len(requests))
            ours, theirs = run(engine, [(rng.randint(0, 20), request) for request in order])
            bits = compare_logits(logits, ours)
            assert (bits.rows, bits.bits_differing) == (len(logits), 0), (seed, bits)
            assert draws(theirs) == draws(outputs), seed
            assert prompt_scores(theirs) == prompt_scores(outputs), seed
        preempted += engine.statistics().preemptions
        cached += sum(output[-1].num_cached for output in theirs.values())
    return preempted, cached


def test_few_random_schedules_give_the_bits_of_requests_alone(invariant):
    requests = draw_requests(invariant.spec.vocab_size, 5, 30, 10, seed=1)
    preempted, cached = check_schedules(invariant, requests, (1, 4))
    assert preempted > 0 and cached > 0, "the schedules must preempt and find cached prefixes"


@pytest.mark.slow
def test_64_random_schedules_give_the_bits_of_requests_alone(invariant):
    requests = draw_requests(invariant.spec.vocab_size, 16, 100, 24, seed=2)
    check_schedules(invariant, requests, range(64))


@pytest.mark.slow
def test_schedules_of_kindling_give_the_bits_of_requests_alone():
    llm = LLM(device="cpu", kv_cache_gib=0.1, batch_invariant=True)
    requests = draw_requests(llm.spec.vocab_size, 6, 200, 12, seed=3)
    check_schedules(llm, requests, range(4))


@pytest.mark.gpu
def test_few_random_schedules_give_the_bits_of_requests_alone_on_a_gpu():
    llm = LLM(device="cuda", kv_cache_gib=0.1, max_model_len=1024, page_size=16, batch_invariant=True)
    requests = draw_requests(llm.spec.vocab_size, 12, 120, 40, seed=4)
    preempted, cached = check_schedules(llm, requests, (3, 4, 6, 7, 10, 12))
    assert preempted > 0 and cached > 0, "the schedules must preempt and find cached prefixes"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings", [{}, {"kv_dtype": "fp8"}, {"mxfp4_layers": "all", "activation": "mxfp8"}], ids=str
)
def test_64_schedules_give_the_bits_of_requests_alone_on_a_gpu(settings):
    llm = LLM(device="cuda", kv_cache_gib=0.5, batch_invariant=True, **settings)
    requests = draw_requests(llm.spec.vocab_size, 32, 600, 32, seed=4)
    check_schedules(llm, requests, range(64))


@pytest.mark.parametrize(
    "planted",
    [lambda rows: rows > 1, lambda rows: rows == 3],
    ids=["by number of rows", "in steps of three rows"],
)
def test_a_bit_that_depends_on_the_batch_is_found(invariant, monkeypatch, planted):
    requests = draw_requests(invariant.spec.vocab_size, 4, 20, 6, seed=5)
    expected, _ = run_alone(invariant, requests)
    plain = invariant.model.logits

    def disturbed(hidden, out=None):
        logits = plain(hidden, out)
        if planted(len(hidden)):
            logits.view(torch.int32)[:, 100] ^= 1
        return logits

    monkeypatch.setattr(invariant.model, "logits", disturbed)
    engine = make_engine(invariant, requests, at_once=3)
    actual, _ = run(engine, [(0, request) for request in requests])
    bits = compare_logits(expected, actual)
    assert bits.rows_differing > 0 and bits.bits_differing >= bits.rows_differing


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kernels": "decode_o=reference"}, "decode_o=reference"),
        ({"require": "decode_qkv=cuda"}, "--require decode_qkv=cuda"),
        ({"prefill_activation": "mxfp8"}, "--prefill-activation mxfp8"),
        ({"prefill_activation": "fp8"}, "--prefill-activation fp8"),
        ({"tile": "64x128"}, "--tile 64x128"),
        ({"tiles_file": "mine.json"}, "--tiles-file mine.json"),
    ],
)
def test_settings_that_break_invariance_are_refused_by_name_with_a_cure(settings, said):
    with pytest.raises(UserError) as refusal:
        check_invariance(KernelConfig(batch_invariant=True, **settings))
    assert "--batch-invariant cannot be combined with" in str(refusal.value) and said in str(refusal.value)
    assert "leave it out" in str(refusal.value) or "--activation" in str(refusal.value)
    check_invariance(KernelConfig(**settings))


def test_tensor_parallelism_is_refused():
    with pytest.raises(UserError, match="tensor parallelism"):
        check_invariance(KernelConfig(batch_invariant=True), num_ranks=2)
    check_invariance(KernelConfig(batch_invariant=True), num_ranks=1)


def test_setting_reaches_what_runs(open_llm, invariant):
    assert invariant.kernels.is_invariant and not open_llm().kernels.is_invariant
    assert all(runs in ("torch:invariant", "reference") for _, runs in invariant.kernels.table())
    with pytest.raises(UserError, match="moe_matmul=reference does not promise"):
        open_llm(batch_invariant=True, kernels="moe=reference")
    assert open_llm(batch_invariant=True, kernels="moe=torch:invariant").kernels.is_invariant
