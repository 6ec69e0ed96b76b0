"""A checkpoint folder becomes an engine that does what LLM's does."""

import pytest

from firesteel.config import resolve
from firesteel.engine.load import load_engine
from firesteel.errors import UserError
from firesteel.types import Request, SamplingParams

CPU = {"device": "cpu", "memory_reserve_gib": 0.0}


def test_loaded_engine_follows_the_settings_and_gives_the_tokens_of_llm(checkpoint, llm):
    config = resolve({**CPU, "page_size": 8, "max_model_len": 100, "kernels": "linear=reference"}).config
    seen = []
    loaded = load_engine(checkpoint, config, progress=lambda done, total: seen.append((done, total)))
    assert loaded.max_context == 100 and loaded.engine.config.page_size == 8
    assert seen[-1][0] == seen[-1][1] == loaded.report.num_bytes > 0
    loaded.engine.submit(Request(request_id="a", token_ids=[5, 6], params=SamplingParams(max_tokens=9)))
    made = []
    while loaded.engine.has_work:
        made += [token for output in loaded.engine.step() for token in output.token_ids]
    assert made == llm.generate([[5, 6]], SamplingParams(max_tokens=9))[0].token_ids
    assert loaded.kernels.ledger.entries


def test_context_beyond_the_checkpoint_is_refused_before_anything_is_read(checkpoint):
    with pytest.raises(UserError, match="max_model_len = 300: the checkpoint reaches 256"):
        load_engine(checkpoint, resolve({**CPU, "max_model_len": 300}).config, progress=pytest.fail)
