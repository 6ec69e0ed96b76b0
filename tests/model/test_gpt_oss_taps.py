"""Residuals that a step keeps for drafters: those of all rows, at any boundary, without other logits."""

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.step.batch import build_batch
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Plan, Request, SamplingParams, Span, Taps

CPU = find_device("cpu")
SPEC = ModelSpec(
    num_layers=4,
    hidden_size=64,
    intermediate_size=64,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    num_experts=4,
    num_active=2,
    vocab_size=97,
    windows=(8, None, 8, None),
    rope=RopeSpec(theta=150000.0),
    max_context=64,
)
TOKENS = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def model():
    weights = synthetic_weights(SPEC, CPU, seed=1)
    return GptOss(SPEC, weights, Kernels(CPU, {}, Ledger()), CPU, max_context=64)


def plan(num_logits):
    request = Request(request_id="a", token_ids=TOKENS, params=SamplingParams())
    span = Span(
        request=request,
        token_ids=TOKENS,
        start=0,
        end=len(TOKENS),
        full_pages=[0],
        window_pages=[1],
        num_logits=num_logits,
    )
    return build_batch(Plan(spans=[span]), 16, CPU.torch_device)


def new_taps(*boundaries):
    rows = torch.full((len(TOKENS), len(boundaries) * SPEC.hidden_size), torch.nan)
    return Taps(boundaries=boundaries, rows=rows)


@pytest.mark.parametrize("num_logits", [0, 1, len(TOKENS)])
def test_rows_are_the_residuals_before_each_layer(model, num_logits):
    taps = new_taps(1, 3, 4)
    cache = new_cache(SPEC, 2, 16, CPU, torch.float32)
    with torch.inference_mode():
        hidden = model.forward(plan(num_logits), cache, taps=taps)
        for place, layers in enumerate(taps.boundaries):
            expected = model.forward_residual(plan(len(TOKENS)), cache, layers)
            torch.testing.assert_close(taps.rows.chunk(3, dim=1)[place], expected)
        torch.testing.assert_close(hidden, model.forward(plan(num_logits), cache))


def test_first_boundary_is_the_embedding(model):
    taps = new_taps(0)
    with torch.inference_mode():
        model.forward(plan(1), new_cache(SPEC, 2, 16, CPU, torch.float32), taps=taps)
    assert torch.equal(taps.rows, model.weights.embedding[torch.tensor(TOKENS)].float())
