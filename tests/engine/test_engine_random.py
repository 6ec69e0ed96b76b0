"""Random arrivals, cancellations, preemptions and settings: each request gets what it gets alone."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firesteel import LLM
from firesteel.config import BatchConfig, CacheConfig
from firesteel.device import GIB
from firesteel.engine.cache.kv_cache import page_bytes
from firesteel.engine.cache.page_tables import WINDOW
from firesteel.engine.engine import Engine
from firesteel.engine.step.decode_loop import DecodeLoop
from firesteel.engine.step.step_store import FusedOps
from firesteel.model.decode_ops import DecodeOps
from firesteel.types import Request, SamplingParams

KINDS = (
    {},
    {"temperature": 1.0, "seed": 7},
    {"logprobs": 2},
    {"min_tokens": 6},
    {"prompt_logprobs": 1},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.2},
    {"temperature": 0.7, "presence_penalty": 1.0, "seed": 3},
    {"mask": True},
    {"logit_bias": {5: 4.0}},
    {"cache_prompt": False},
)
LENGTHS = (1, 4, 5, 9, 16, 23, 33)  # of prompts, all beginnings of one text
MOST_TOKENS = 12
SETTINGS = st.fixed_dictionaries(
    {
        "ahead": st.integers(0, 4),
        "fused": st.booleans(),
        "page_size": st.sampled_from([1, 4, 8]),
        "spare": st.integers(0, 30),
        "prefix_caching": st.booleans(),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.sampled_from([6, 16, 200]),
        "padded": st.booleans(),
        "room": st.sampled_from([None, 1, 5]),
    }
)
# For each request: which it is, the step before which it comes, and how many steps later it is cancelled, if ever.
COMERS = st.lists(
    st.tuples(
        st.integers(0, len(KINDS) * len(LENGTHS) - 1),
        st.integers(0, 25),
        st.none() | st.integers(0, 12),
    ),
    min_size=1,
    max_size=9,
)


class Alternate:
    """Allows even tokens, then odd ones."""

    def is_ready(self, token_ids):
        return True

    def allowed(self, token_ids):
        mask = torch.zeros(272, dtype=torch.bool)
        mask[len(token_ids) % 2 :: 2] = True
        return mask


def make_request(number, name):
    kind, length = KINDS[number % len(KINDS)], LENGTHS[number // len(KINDS)]
    params = {key: value for key, value in kind.items() if key not in ("mask", "min_tokens")}
    most = 2 + (5 * number) % (MOST_TOKENS - 1)
    return Request(
        request_id=name,
        token_ids=[(7 * position + position**2) % 250 for position in range(length)],
        params=SamplingParams(max_tokens=most, min_tokens=min(most, kind.get("min_tokens", 0)), **params),
        stops=frozenset(range(number % 5, 272, 23)),
        mask=Alternate() if "mask" in kind else None,
    )


def make_engine(llm, settings):
    batch = {name: settings[name] for name in ("page_size", "max_num_seqs", "max_num_batched_tokens")}
    config = BatchConfig(**batch)
    longest = LENGTHS[-1] + MOST_TOKENS
    pages = 2 * -(-longest // config.page_size) + 4 + settings["spare"]
    bytes_per_page = page_bytes(llm.spec, config.page_size, torch.float32)
    fused = FusedOps(ops=DecodeOps.choose(llm.device, llm.kernels.ledger), is_asked=True)
    engine = Engine(
        llm.model,
        llm.device,
        config,
        CacheConfig(kv_cache_gib=(pages + 0.5) * bytes_per_page / GIB, prefix_caching=settings["prefix_caching"]),
        max_context=llm.max_context,
        fused=fused if settings["fused"] else None,
        run_ahead_steps=settings["ahead"],
        eager_prompt_steps=settings["padded"],
    )
    if (room := settings["room"]) is not None:
        engine.scheduler.find_room = lambda num_decoding: room
    return engine


def check_pages(engine):
    """Checks that holders of pages match the requests, and that no page serves two kinds of layers."""
    held = [0] * engine.pool.num_pages
    for job in engine.scheduler.running:
        for kind, pages in job.table.pages.items():
            for page in pages[job.table.num_released if kind == WINDOW else 0 :]:
                held[page] += 1
    assert held == engine.pool.holders


def run(engine, comers):
    """Returns outputs by name, and the names that were cancelled."""
    made, cancelled = {}, set()
    leaving = {}
    waiting = sorted(((at, index) for index, (_, at, _) in enumerate(comers)), reverse=True)
    step = 0
    while waiting or engine.has_work:
        while waiting and waiting[-1][0] <= step:
            index = waiting.pop()[1]
            number, _, patience = comers[index]
            engine.submit(make_request(number, str(index)))
            made[str(index)] = []
            if patience is not None:
                leaving.setdefault(step + patience, []).append(str(index))
        for name in leaving.get(step, ()):
            if engine.cancel(name) is not None:
                cancelled.add(name)
        for output in engine.step():
            made[output.request_id].append(output)
        check_pages(engine)
        step += 1
        assert step < 3000, "somebody starves"
    return made, cancelled


@pytest.fixture(scope="module")
def alone(llm):
    """Returns alone(number): outputs of a request by itself, every step op by op from a new batch, uncached."""

    @cache
    def compute(number):
        settings = {
            "page_size": 64,
            "max_num_seqs": 1,
            "max_num_batched_tokens": 200,
            "spare": 0,
            "prefix_caching": False,
            "fused": False,
            "ahead": 0,
            "padded": False,
            "room": None,
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DecodeLoop, "takes", lambda self, plan: False)
            return run(make_engine(llm, settings), [(number, 0, None)])[0]["0"]

    return compute


def tokens(outputs):
    return [token for output in outputs for token in output.token_ids]


def scores(outputs, of):
    return [score for output in outputs for score in of(output)]


def check(outputs, expected, *, is_whole):
    actual, wanted = tokens(outputs), tokens(expected)
    assert actual == (wanted if is_whole else wanted[: len(actual)])
    if is_whole:
        assert outputs[-1].finish_reason == expected[-1].finish_reason
        assert all(output.finish_reason is None for output in outputs[:-1])
    for of in (
        lambda output: [output.logprobs] if output.logprobs else [],
        lambda output: output.prompt_logprobs or [],
    ):
        ours, theirs = scores(outputs, of), scores(expected, of)
        assert len(ours) == len(theirs) or not is_whole
        for mine, other in zip(ours, theirs, strict=False):
            assert mine.token_id == other.token_id and mine.logprob == pytest.approx(other.logprob, abs=1e-3)


def check_everybody(llm, alone, comers, settings):
    engine = make_engine(llm, settings)
    for _ in range(2):  # the second time pages of the first are found
        made, cancelled = run(engine, comers)
        for index, (number, _, _) in enumerate(comers):
            check(made[str(index)], alone(number), is_whole=str(index) not in cancelled)
        assert engine.pool.num_held == 0
    statistics = engine.statistics()
    assert statistics.requests_finished + statistics.requests_cancelled == 2 * len(comers)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(comers=COMERS, settings=SETTINGS)
def test_each_request_gets_what_it_gets_alone(llm, alone, comers, settings):
    check_everybody(llm, alone, comers, settings)


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(comers=COMERS, settings=SETTINGS)
def test_each_request_gets_what_it_gets_alone_with_many_settings(llm, alone, comers, settings):
    check_everybody(llm, alone, comers, settings)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("ahead", "fused"), [(0, False), (3, False), (0, True), (3, True)])
def test_broken_request_harms_no_other_and_leaves_nothing_behind(open_llm, ahead, fused, padded):
    """Its pages hold NaN; if found by prefix, they would break every later request with the same text."""
    llm = open_llm()
    settings = {
        "page_size": 4,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 16,
        "spare": 60,
        "prefix_caching": True,
        "fused": fused,
        "ahead": ahead,
        "padded": padded,
        "room": None,
    }
    engine, token = make_engine(llm, settings), 251
    broken = replace(make_request(60, "broken"), token_ids=[*range(20), token, *range(9)])
    other = make_request(30, "other")
    expected = {}
    for request in (broken, other):
        fresh = make_engine(llm, settings)
        fresh.submit(request)
        expected[request.request_id] = finish(fresh)[request.request_id]
    embedding = llm.model.weights.embedding
    kept = embedding[token].clone()
    embedding[token] = float("nan")
    for request in (broken, other):
        engine.submit(request)
    made = finish(engine)
    assert made["broken"][-1].finish_reason == "error" and "NaN or infinity" in made["broken"][-1].error
    check(made["other"], expected["other"], is_whole=True)
    embedding[token] = kept
    engine.submit(replace(broken, request_id="again"))
    check(finish(engine)["again"], expected["broken"], is_whole=True)


def finish(engine):
    made = {}
    while engine.has_work:
        for output in engine.step():
            made.setdefault(output.request_id, []).append(output)
        check_pages(engine)
    return made


@pytest.mark.gpu
def test_gpu_survives_a_request_that_breaks():
    """Expert and token ids of a bad row are computed from NaN."""
    llm = LLM(device="cuda", kv_cache_gib=0.5)
    engine = Engine(
        llm.model,
        llm.device,
        BatchConfig(page_size=16, max_num_seqs=6, max_num_batched_tokens=64),
        CacheConfig(kv_cache_gib=0.1),
        max_context=llm.max_context,
        fused=llm.engine.loop.store.fused,
        run_ahead_steps=3,
    )
    prompt, token = [*range(100, 140), 3000, *range(200, 209)], 3000
    params = SamplingParams(max_tokens=20)
    requests = [
        Request(request_id=name, token_ids=token_ids, params=params)
        for name, token_ids in (("broken", prompt), ("other", prompt[1:30]), ("last", prompt[5:25]))
    ]
    engine.submit(requests[0])
    expected = tokens(finish(engine)["broken"])
    engine.submit(replace(requests[0], request_id="once more"))
    assert finish(engine)["once more"][-1].num_cached > 0
    embedding = llm.model.weights.embedding
    with torch.inference_mode():
        kept = embedding[token].clone()
        embedding[token] = float("nan")
        for request in requests:
            engine.submit(replace(request, cache_salt="cold"))
        made = finish(engine)
        embedding[token] = kept
    assert made["broken"][-1].finish_reason == "error" and "NaN or infinity" in made["broken"][-1].error
    assert all(len(tokens(made[name])) == 20 and made[name][-1].error is None for name in ("other", "last"))
    engine.submit(replace(requests[0], request_id="again", cache_salt="cold"))
    again = finish(engine)["again"]
    assert tokens(again) == expected and again[-1].num_cached == 0
