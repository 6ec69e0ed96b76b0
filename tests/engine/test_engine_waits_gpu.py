"""Kindling on a GPU: while it serves, the host waits for results and for nothing else."""

from pathlib import Path

import pytest

from firesteel import LLM
from firesteel.engine.preparation import prepare
from firesteel.hub import find_draft_model
from firesteel.model.drafters.load import load_drafter
from firesteel.types import Request, SamplingParams
from tests.engine.drafted_requests import always, make
from tests.held_out import encode_held_out

EXTRA = (
    {},
    {"temperature": 0.8, "top_p": 0.9, "seed": 1},
    {"logprobs": 2},
    {"prompt_logprobs": 2},
    {"repetition_penalty": 1.2},
    {"logit_bias": {5: 2.0}, "allowed_token_ids": tuple(range(4, 300))},
)


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cuda", kv_cache_gib=0.1, max_num_seqs=8, max_model_len=1024)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["off", "ngram", "eagle3", "dflash"])
def test_gpu_engine_waits_for_results_alone(kindling, kind, forbid_waiting):
    """Accidental waits are errors of torch here; tests/late finds them without a GPU, but not those of kernels."""
    folder = find_draft_model(kind, "", kindling.directory)
    engine = make(
        kindling,
        speculate=None if kind == "off" else always(kind),
        drafter=load_drafter(Path(folder), kind, kindling.model, kindling.device) if folder else None,
        page_size=64,
        pages=200,
        max_num_batched_tokens=128,
    )
    prepare(engine)
    prompts = encode_held_out(kindling)
    for number, extra in enumerate(EXTRA):
        params = SamplingParams(max_tokens=24, ignore_eos=True, **extra)
        engine.submit(Request(request_id=str(number), token_ids=prompts[number % len(prompts)], params=params))
    outputs = []
    with forbid_waiting():
        while engine.has_work:
            outputs += engine.step()
    assert len({output.request_id for output in outputs}) == len(EXTRA)
    assert not any(output.error for output in outputs)
    totals = engine.statistics()
    assert totals.late_captures == 0 and (kind in ("off", "ngram") or totals.draft_tokens > 0)
