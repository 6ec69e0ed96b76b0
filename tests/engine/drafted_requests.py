"""Requests of a tiny random model, and engines that run them with and without drafts."""

import random

from firesteel.config import BatchConfig, CacheConfig, SpeculateConfig
from firesteel.device import GIB
from firesteel.engine.cache.kv_cache import find_dtype, page_bytes
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
NEW = 24


def make(
    llm,
    *,
    pages=None,
    speculate=None,
    drafter=None,
    kernels=None,
    eager_prompt_steps=False,
    eager_draft_steps=False,
    run_ahead_steps=None,
    **batch,
):
    """Returns an engine on the model of `llm`; `pages` bounds the cache, in pages without those of the drafter."""
    config = BatchConfig(**{"page_size": 4, "max_num_seqs": 8, **batch})
    bytes_per_page = page_bytes(llm.spec, config.page_size, find_dtype("auto", llm.device))
    cache = CacheConfig(kv_cache_gib=pages * bytes_per_page / GIB if pages else 0.0)
    return Engine(
        llm.model,
        llm.device,
        config,
        cache,
        max_context=llm.max_context,
        kernels=kernels,
        fused=llm.engine.loop.store.fused,
        speculate=speculate,
        drafter=drafter,
        eager_prompt_steps=eager_prompt_steps,
        eager_draft_steps=eager_draft_steps,
        run_ahead_steps=run_ahead_steps,
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
