"""Random mixes of requests: the same outputs with drafts as without, whatever is cut, preempted or cancelled."""

import random

import pytest
import torch

from firesteel.config import SpeculateConfig
from firesteel.engine.speculate.drafting import DraftingSpeculator
from firesteel.types import Request, SamplingParams
from tests.engine.drafted_requests import make
from tests.engine.scripted_drafts import ScriptedSpeculator
from tests.engine.test_engine_drafting import KnowingDrafter

VOCABULARY = 272
KINDS = ("scripted", "copies", "adaptive copies", "network", "adaptive network")


class RandomMask:
    """Allows about a third of all tokens, others after each text; sometimes takes its time."""

    def __init__(self, seed):
        self.seed, self.random = seed, random.Random(seed)

    def allowed(self, token_ids):
        last = token_ids[-1] if len(token_ids) else 0
        generator = torch.Generator().manual_seed(1000 * self.seed + 7 * last + len(token_ids) % 3)
        mask = torch.rand(VOCABULARY, generator=generator) < 0.35
        mask[5] = True
        return mask

    def is_ready(self, token_ids):
        return self.random.random() < 0.7

    def count_allowed(self, token_ids, draft_ids):
        count, text = 0, list(token_ids)
        while count < len(draft_ids) and self.allowed(text)[draft_ids[count]]:
            text.append(draft_ids[count])
            count += 1
        return count if self.random.random() < 0.9 else 0

    def allowed_along(self, token_ids, draft_ids):
        return [self.allowed([*token_ids, *draft_ids[:count]]) for count in range(len(draft_ids) + 1)]


def draw_params(rng):
    """Draws settings of one kind of request or of several at once."""
    params = {"max_tokens": rng.choice([1, 2, 3, 9, 20, 31])}
    if rng.random() < 0.5:
        params |= {"temperature": rng.choice([0.3, 1.0, 1.5]), "seed": rng.randrange(4)}
    if rng.random() < 0.2:
        params |= {
            "top_k": rng.choice([1, 5, 40]),
            "top_p": rng.choice([0.5, 1.0]),
            "min_p": rng.choice([0.0, 0.1]),
        }
    if rng.random() < 0.25:
        params["logprobs"] = rng.choice([0, 3])
    if rng.random() < 0.15:
        params["prompt_logprobs"] = rng.choice([0, 2])
    if rng.random() < 0.2:
        params |= {"repetition_penalty": 1.2, "frequency_penalty": 0.2}
    if rng.random() < 0.2:
        params["bad_words"] = ((7, 8), (rng.randrange(VOCABULARY),))
    if rng.random() < 0.3:
        params["stop_token_ids"] = tuple(rng.sample(range(VOCABULARY), 40))
        params["min_tokens"] = rng.randrange(params["max_tokens"] + 1)
    if rng.random() < 0.3:  # texts that repeat
        params["logit_bias"] = {rng.randrange(VOCABULARY): rng.choice([6.0, 100.0])}
    if rng.random() < 0.15:
        params["cache_prompt"] = False
    return params


def draw_requests(rng):
    words = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 6))] for _ in range(3)]
    requests = []
    for number in range(rng.randint(1, 7)):
        if requests and rng.random() < 0.35:  # the same prompt again, as for n > 1, or with more after it
            prompt = [*rng.choice(requests).token_ids, *rng.choice([[], words[0]])]
        else:
            prompt = [token for _ in range(rng.randint(1, 9)) for token in rng.choice(words)]
        drawn, is_scored = draw_params(rng), rng.random() < 0.05
        if is_scored:  # no network stores the row of the last token, which nothing follows
            drawn["cache_prompt"] = False
        params = SamplingParams(**drawn)
        requests.append(
            Request(
                request_id=str(number),
                token_ids=prompt[:60],
                params=params,
                stops=frozenset(params.stop_token_ids),
                mask=RandomMask(number) if rng.random() < 0.25 else None,
                score=is_scored,
            )
        )
    return requests


def run(engine, requests, rng, cancelled=()):
    """Runs requests that arrive at random times; `cancelled` ones are after a random number of steps."""
    outputs = {request.request_id: [] for request in requests}
    waiting, left = list(requests), dict.fromkeys(cancelled, 0)
    for name in left:
        left[name] = rng.randint(1, 12)
    while waiting or engine.has_work:
        while waiting and (not engine.has_work or rng.random() < 0.4):
            engine.submit(waiting.pop(0))
        for output in engine.step():
            outputs[output.request_id].append(output)
        leave_some(engine, rng)
        for name in [name for name in left if name in engine.scheduler.jobs]:
            left[name] -= 1
            if not left[name]:
                engine.cancel(name)
    assert engine.pool.num_held == 0
    return outputs


def leave_some(engine, rng):
    """Has a draft network leave requests at random, which it follows again soon after."""
    if not isinstance(engine.speculator, DraftingSpeculator) or engine.in_flight.launched:
        return
    size = engine.config.page_size
    for text in engine.speculator._texts.values():
        if rng.random() < 0.1:
            text.leave(size)
            text.begin = (-(-len(text.token_ids) // size) + rng.randrange(3)) * size


def read(outputs):
    """Returns what a reader sees: tokens with logprobs, the reason of the end, scored prompts."""
    tokens = [
        (token, None if output.logprobs is None else (output.logprobs.token_id, len(output.logprobs.top)))
        for output in outputs
        for token in output.token_ids
    ]
    scored = [row.token_id for output in outputs for row in output.prompt_logprobs or ()]
    ends = [(output.finish_reason, output.error) for output in outputs if output.finish_reason]
    return tokens, scored, ends


def open_engine(llm, kind, texts, rng, **setup):
    adapts = kind.startswith("adaptive")
    drafting = SpeculateConfig(
        speculate="eagle3" if "network" in kind else "ngram",
        adapt_speculation=adapts,
        num_speculative_tokens=rng.choice([0, 1, 4]),
    )
    drafter = None
    if "network" in kind:
        drafter = KnowingDrafter(llm.model, texts, chance=rng.choice([0.3, 0.8, 1.0]))
    engine = make(llm, speculate=drafting, drafter=drafter, **setup)
    policy = engine.speculator.policy
    policy._measure = lambda: {1: 1.0, 2: 1.1, 8: 1.4, 32: 2.0}
    if kind == "scripted":
        known = {str(number): text for number, text in enumerate(texts)}
        engine.speculator = ScriptedSpeculator(policy, known, most=rng.randint(1, 7), chance=rng.random())
        engine.scheduler.draft_with(engine.speculator.find_drafts, engine.loop.store.most_requests)
    return engine


def check(llm, seed):
    """Compares one random mix without drafts and with each kind; returns the accepted tokens."""
    rng = random.Random(seed)
    requests = draw_requests(rng)
    expected = {name: read(own) for name, own in run(make(llm), requests, rng).items()}
    new = [[token for token, _ in expected[request.request_id][0]] for request in requests]
    accepted = 0
    for kind in KINDS:
        setup = {
            "max_num_seqs": rng.choice([1, 2, 8]),
            "page_size": rng.choice([4, 8]),
            "max_num_batched_tokens": rng.choice([9, 40, 512]),
        }
        setup["pages"] = rng.choice([None, 96 if "network" in kind else 64])
        texts = new
        if "network" in kind:
            texts = [[*request.token_ids, *own] for request, own in zip(requests, new, strict=True)]
        engine = open_engine(llm, kind, texts, rng, **setup)
        engine.run_ahead_steps = rng.choice([0, 3])
        cancelled = {request.request_id for request in requests if rng.random() < 0.2}
        outputs = run(engine, requests, rng, cancelled)
        for request in requests:
            name = request.request_id
            got = read(outputs[name])
            if name in cancelled:
                assert all(ours == theirs[: len(ours)] for ours, theirs in zip(got, expected[name], strict=True))
            else:
                assert got == expected[name], (seed, kind, setup, name)
        accepted += engine.totals.accepted_tokens
    return accepted


@pytest.mark.parametrize("seed", range(6))
def test_drafts_change_no_output_of_a_random_mix(llm, seed):
    check(llm, seed)


@pytest.mark.slow
def test_drafts_change_no_output_of_200_random_mixes(llm):
    assert sum(check(llm, seed) for seed in range(100, 300)) > 2000
