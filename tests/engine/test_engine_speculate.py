"""Drafted tokens change no token: every request gives what it gives without drafts."""

import random

import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig, SpeculateConfig
from firesteel.device import GIB
from firesteel.engine.cache.kv_cache import page_bytes
from firesteel.engine.engine import Engine
from firesteel.types import Request, SamplingParams

RNG = random.Random(7)
WORDS = [[RNG.randrange(256) for _ in range(5)] for _ in range(3)]
PROMPTS = [
    [token for word in (0, 1, 2, 0, 1, 2, 0) for token in WORDS[word]],
    [RNG.randrange(256) for _ in range(33)],
    [3, 1, 4] * 9,
    [RNG.randrange(256)],
]
NEW = 40
PARAMS = {
    "greedy": {},
    "sampled": {"temperature": 0.7, "seed": 5},
    "truncated": {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 6},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.3},
    "bad words": {"bad_words": ((7, 8), (9,)), "temperature": 0.5},
    "logprobs": {"logprobs": 3},
    "least": {"min_tokens": 20, "stop_token_ids": tuple(range(0, 256, 3))},
    "prompt logprobs": {"prompt_logprobs": 2},
}


def make(llm, *, pages=None, speculate=None, drafter=None, **batch):
    config = BatchConfig(**{"page_size": 4, "max_num_seqs": 8, **batch})
    bytes_per_page = page_bytes(llm.spec, config.page_size, torch.float32)
    cache = CacheConfig(kv_cache_gib=pages * bytes_per_page / GIB if pages else 0.0)
    return Engine(
        llm.model,
        llm.device,
        config,
        cache,
        max_context=llm.max_context,
        speculate=speculate,
        drafter=drafter,
    )


def always(kind="ngram", **settings):
    return SpeculateConfig(speculate=kind, adapt_speculation=False, **settings)


def make_requests(params, max_tokens=NEW):
    return [
        Request(
            request_id=str(number),
            token_ids=prompt,
            params=SamplingParams(max_tokens=max_tokens, **params),
            stops=frozenset(params.get("stop_token_ids", ())),
        )
        for number, prompt in enumerate(PROMPTS)
    ]


def run(engine, requests):
    outputs = {request.request_id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id].append(output)
    return outputs


def facts(outputs):
    """Returns what a reader sees, apart from the times."""
    return {
        name: [
            (output.token_ids, output.finish_reason, [] if output.logprobs is None else output.logprobs.token_id)
            for output in own
        ]
        for name, own in outputs.items()
    }


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_copied_drafts_change_no_output(llm, params):
    expected = run(make(llm), make_requests(params))
    engine = make(llm, speculate=always())
    made = run(engine, make_requests(params))
    assert [[(o.token_ids, o.finish_reason) for o in made[name] if o.token_ids] for name in expected] == [
        [(o.token_ids, o.finish_reason) for o in outputs if o.token_ids] for outputs in expected.values()
    ]
    assert engine.totals.draft_tokens > 0
    assert engine.pool.num_held == 0


def test_repeated_text_takes_fewer_steps_than_tokens(llm):
    engine = make(llm, speculate=always())
    run(engine, make_requests({"logit_bias": {5: 100.0}}))
    totals = engine.totals
    assert totals.accepted_tokens > totals.drafts, "more than one draft is accepted at a time"
    assert totals.steps < NEW / 2
