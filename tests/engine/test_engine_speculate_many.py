"""Kindling and its drafters on a CPU, many prompts: no token changes, and copies are accepted if texts repeat."""

import random

import pytest

from firesteel import LLM, SamplingParams
from firesteel.chat.harmony import Harmony
from firesteel.engine.sample.grammar import Grammars
from firesteel.eval import encode_prompt, take
from firesteel.exam import EXAM, read_items
from firesteel.measure.tokens.agreement import compare_all
from firesteel.measure.tokens.runs import run_together
from firesteel.types import Request
from tests.engine.test_engine_speculate_gpu import KINDS, open_engine

pytestmark = pytest.mark.slow

NUM, NEW = 1000, 20
TOGETHER = 12  # requests, whose drafts fit into a step of 32 rows
SETUP = {"pages": 70, "max_num_seqs": 32, "max_num_batched_tokens": 512}
TIE = 1e-3  # nats: float32 sums in another order move a logit by about 1e-5
GRAMMAR = "start: /[a-z ]{4,}/"
COPYING = ("continuation", "copy", "retrieval")


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cpu", kv_cache_gib=0.1, page_size=16, max_model_len=1024)


def draw_prompt(rng, words):
    """Draws random tokens, some of them words of texts, with a part that repeats."""
    prompt = [
        rng.choice(words) if rng.random() < 0.7 else rng.randrange(256, 4000) for _ in range(rng.randint(2, 40))
    ]
    begin = rng.randrange(len(prompt))
    return prompt + prompt[begin : begin + rng.randint(0, 12)]


@pytest.fixture(scope="module")
def requests(kindling):
    """1000 random prompts; every tenth text must follow a grammar."""
    rng, grammars = random.Random(1), Grammars.of(kindling.directory)
    items = take(read_items(EXAM), 1)
    words = [token for item in items for token in encode_prompt(Harmony(kindling.tokenizer), kindling, item)]
    drawn = [
        Request(
            request_id=str(number),
            token_ids=draw_prompt(rng, words),
            params=SamplingParams(max_tokens=NEW, ignore_eos=True, grammar=GRAMMAR if number % 10 == 0 else None),
        )
        for number in range(NUM)
    ]
    return lambda: [grammars.bind(request) for request in drawn]


@pytest.fixture(scope="module")
def expected(kindling, requests):
    scored = [
        Request(
            request_id=request.request_id,
            token_ids=request.token_ids,
            params=SamplingParams(max_tokens=NEW, ignore_eos=True, grammar=request.params.grammar, logprobs=2),
            mask=request.mask,
        )
        for request in requests()
    ]
    return run_together(open_engine(kindling, "off", **SETUP | {"pages": 1200}), scored)


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_draft_changes_a_token_of_1000_prompts(kindling, requests, expected, kind):
    engine = open_engine(kindling, kind, **SETUP)
    given, tokens = requests(), {}
    for begin in range(0, NUM, TOGETHER):
        tokens |= run_together(engine, given[begin : begin + TOGETHER]).tokens
    pairs = compare_all(expected.tokens, tokens, expected.margins)
    differing = [pair for pair in pairs if not pair.is_equal]
    assert len(pairs) == NUM and len(differing) <= 3, differing
    assert all(pair.margin is not None and pair.margin <= TIE for pair in differing), differing
    totals = engine.statistics()
    assert totals.accepted_tokens > NUM and totals.preemptions > 0
    assert engine.pool.num_held == 0


def test_copies_give_three_tokens_per_step_where_texts_repeat():
    """Checks the exam's families that copy: prompts that neither Kindling nor a drafter was trained on."""
    llm = LLM(device="cpu", kv_cache_gib=0.1, speculate="ngram", adapt_speculation=False)
    items = [item for item in take(read_items(EXAM), 6) if item.family in COPYING]
    prompts = [encode_prompt(Harmony(llm.tokenizer), llm, item) for item in items]
    llm.generate(prompts, SamplingParams(max_tokens=96), progress=False)
    totals = llm.engine.statistics()
    assert len(items) == 18 and 1 + totals.accepted_tokens / totals.drafts >= 3
