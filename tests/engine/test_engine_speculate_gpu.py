"""Kindling with its drafters: drafts change no token but near ties, and are accepted as often as on a CPU.

On a CPU, which computes in float32, no token changes.
"""

from pathlib import Path

import pytest

from firesteel import LLM
from firesteel.config import KernelConfig
from firesteel.hub import find_draft_model
from firesteel.measure.tokens.agreement import Agreement, compare_all
from firesteel.measure.tokens.runs import run_together
from firesteel.model.drafters.load import load_drafter
from firesteel.types import Request, SamplingParams
from tests.engine.drafted_requests import always, make
from tests.held_out import encode_held_out

NEW = 40
# Nats between the two most likely tokens: a bf16 logit of 16 to 32 has steps of 0.125. The same requests in other
# batches differ where the margin is up to 0.25 in the records of Kindling (records/h200-agreement) ...
NEAR_TIE = 0.25
MOST_DIFFERENCES = 0.04  # ... at a rate of up to 0.017 per token
NUM = 8  # requests
ROOM = {"page_size": 16, "pages": 1200, "max_num_seqs": 32, "max_num_batched_tokens": 512}
SETUPS = {
    "one at a time": {"max_num_seqs": 1},
    "three": {"max_num_seqs": 3, "max_num_batched_tokens": 64},
    "eight": {},
    "few pages": {"pages": 90},
    "no graphs": {"max_num_seqs": 3, "kernels": KernelConfig(cuda_graphs=False, prefill_graphs=False)},
}
KINDS = ("ngram", "eagle3", "dflash")
# Tokens per step that drafts, its own included; a CPU gives 2.4 and 5.1 with these prompts.
LEAST_LENGTH = {"eagle3": 2.1, "dflash": 4.0}


@pytest.fixture(
    scope="module",
    params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def kindling(request):
    """Kindling on a device. What its steps launch on a GPU is compiled together, and not one after the other."""
    return LLM(
        device=request.param,
        kv_cache_gib=0.1,
        page_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        max_model_len=1024,
        prepare=request.param == "cuda",
    )


@pytest.fixture(scope="module")
def prompts(kindling):
    return encode_held_out(kindling)


def open_engine(llm, kind, **setup):
    """Opens an engine that drafts all it can, or nothing if `kind` is off."""
    folder = find_draft_model(kind, "", llm.directory)
    drafter = load_drafter(Path(folder), kind, llm.model, llm.device) if folder else None
    return make(llm, speculate=always(kind), drafter=drafter, **{**ROOM, **setup})


def draw(prompts, **params):
    """Returns requests with the first prompts; the sampler draws for those with logprobs, steps for the others."""
    extra = ({}, {}, {"logprobs": 2})
    return [
        Request(
            request_id=str(number),
            token_ids=prompt,
            params=SamplingParams(max_tokens=NEW, ignore_eos=True, **{**extra[number % 3], **params}),
        )
        for number, prompt in enumerate(prompts[:NUM])
    ]


@pytest.fixture(scope="module")
def expected(kindling, prompts):
    """Outputs without drafts, one request at a time, with margins."""
    return run_together(open_engine(kindling, "off", max_num_seqs=1), draw(prompts, logprobs=2))


def agree(expected, outputs, margins):
    pairs = compare_all(expected.tokens, outputs.tokens, margins)
    return Agreement(equality="drafts = none", evidence="", pairs=tuple(pairs))


def check(llm, agreement):
    print(agreement.as_dict())
    if not llm.device.is_cuda:
        assert agreement.request_share == 1, agreement
    assert agreement.differences_a_token <= MOST_DIFFERENCES, agreement
    assert (agreement.largest_margin or 0) <= NEAR_TIE, agreement


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_without_drafts_but_for_near_ties(kindling, prompts, expected, kind, name):
    engine = open_engine(kindling, kind, **SETUPS[name])
    cached = []
    for _ in range(2):  # the second time, prompts are cached
        outputs = run_together(engine, draw(prompts))
        check(kindling, agree(expected, outputs, expected.margins))
        cached.append(outputs.cached_tokens)
    assert cached[0] < cached[1] or name == "few pages"
    totals = engine.statistics()
    assert 0 < totals.accepted_tokens < totals.draft_tokens
    assert (totals.preemptions > 0) == (name == "few pages")
    assert engine.pool.num_held == 0


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_tokens_are_those_without_drafts_but_for_near_ties(kindling, prompts, kind):
    """Margins of draws are not known; in the records the same seed differs at a rate of 0.004 per token."""
    params = {"temperature": 0.8, "top_p": 0.95, "seed": 7, "frequency_penalty": 0.2}
    alone, drafted = (run_together(open_engine(kindling, name), draw(prompts, **params)) for name in ("off", kind))
    check(kindling, agree(alone, drafted, {}))


@pytest.mark.parametrize("kind", LEAST_LENGTH)
def test_kindling_accepts_drafts_of_its_own_text_as_often_as_recorded(kindling, prompts, kind):
    engine = open_engine(kindling, kind, max_num_seqs=1)
    requests = [
        Request(
            request_id=str(number), token_ids=prompt, params=SamplingParams(max_tokens=64), stops=kindling.stop_ids
        )
        for number, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    totals = engine.totals
    print(kind, totals.drafts, totals.accepted_tokens, totals.accepted_at)
    assert 1 + totals.accepted_tokens / totals.drafts >= LEAST_LENGTH[kind]
