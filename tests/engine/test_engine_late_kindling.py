"""Kindling with its drafters on a GPU that computes late: tokens, and which kernels an H200 would run."""

from pathlib import Path

import pytest

from firesteel import LLM
from firesteel.device.catalogue import CATALOGUE
from firesteel.engine.preparation import prepare
from firesteel.hub import find_draft_model
from firesteel.kernels.op.op import REFERENCE
from firesteel.measure.tokens.runs import run_together
from firesteel.model.drafters.load import load_drafter
from firesteel.types import Request, SamplingParams
from tests.engine.drafted_requests import always, make
from tests.held_out import encode_held_out
from tests.late.cuda import late_cuda, move_drafter, open_late

pytestmark = pytest.mark.slow

KINDS = ("off", "ngram", "eagle3", "dflash")
NEW = 20
ROOM = {"page_size": 64, "pages": 200, "max_num_seqs": 12, "max_num_batched_tokens": 256}


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cpu", kv_cache_gib=0.1, max_num_seqs=8, max_model_len=1024)


@pytest.fixture(scope="module")
def requests(kindling):
    prompts = [prompt[-70 - 15 * number :] for number, prompt in enumerate(encode_held_out(kindling)[:6])]

    def draw(**params):
        return [
            Request(
                request_id=str(number),
                token_ids=prompt,
                params=SamplingParams(max_tokens=NEW, ignore_eos=True, **params),
            )
            for number, prompt in enumerate(prompts)
        ]

    return draw


@pytest.fixture(scope="module")
def expected(kindling, requests):
    return run_together(make(kindling, **ROOM), requests()).tokens


def open_engine(gpu, llm, kind, *, fused, device=None, **room):
    late, drafter = open_late(gpu, llm, fused=fused, device=device), None
    if folder := find_draft_model(kind, "", llm.directory):
        drafter = move_drafter(gpu, load_drafter(Path(folder), kind, llm.model, llm.device), late.model)
    return make(late, speculate=None if kind == "off" else always(kind), drafter=drafter, **{**ROOM, **room})


FEW_PAGES = {"max_num_seqs": 3, "pages": 20, "page_size": 16}


@pytest.mark.parametrize(("seed", "fused", "room"), [(None, True, {}), (1, False, FEW_PAGES)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_a_cpu(kindling, requests, expected, kind, seed, fused, room):
    with late_cuda(seed) as gpu:
        engine = open_engine(gpu, kindling, kind, fused=fused, **room)
        for _ in range(2):  # the second time, prompts are cached
            assert run_together(engine, requests()).tokens == expected
        totals = engine.statistics()
        assert (totals.preemptions > 0) == bool(room)
        assert totals.accepted_tokens > 0 or kind in ("off", "ngram")
        assert engine.pool.num_held == 0


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_h200_has_a_kernel_for_every_call_of_a_step(kindling, requests, kind, fused):
    """A length with a stride of 0 was refused once: a reference takes it, and only a GPU has other kernels."""
    with late_cuda() as gpu:
        engine = open_engine(gpu, kindling, kind, fused=fused, device=CATALOGUE["h200"])
        run_together(engine, requests())
        run_together(engine, requests(temperature=0.8, top_p=0.95, seed=7, frequency_penalty=0.2, logprobs=2))
        ran = engine.runner.model.kernels.ledger.entries
        assert not engine.loop.store.refusals and REFERENCE not in {way.implementation for way in ran}
        assert {"moe_matmul", "attention", "draw"} <= {way.op for way in ran}
        assert fused == ("decode_attention" in {way.op for way in ran})


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_prepared_engine_makes_nothing_late(kindling, requests, expected, kind):
    with late_cuda() as gpu:
        engine = open_engine(gpu, kindling, kind, fused=True, max_num_seqs=3)
        prepare(engine)
        assert run_together(engine, requests()).tokens == expected
        totals = engine.statistics()
        assert totals.late_captures == 0 and totals.graphs > 5 and totals.draft_graphs > 5
