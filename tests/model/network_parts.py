"""Child of test_gpt_oss.py, with Triton's interpreter on: python network_parts.py - ACTIVATION...

Runs the network in Triton with norms that store for the next matmul, and without: equal bits, other kernels.
"""

import sys
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.step.batch import build_batch
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.chosen import Chosen
from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.registry import NETWORK_OPS
from firesteel.kernels.rope import RopeSpec
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Plan, Request, SamplingParams, Span

SPEC = ModelSpec(
    num_layers=2,
    hidden_size=96,
    intermediate_size=64,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    num_experts=3,
    num_active=2,
    vocab_size=272,
    windows=(8, None),
    rope=RopeSpec(theta=150000.0),
    max_context=256,
)
TOKENS = [3, 1, 4]


def run(spec, activation, reads_fed):
    """Returns (hidden, launches per kernel, calls per op) of a step; `reads_fed` False: no op reads stored rows."""
    device = find_device("cpu")
    pins = dict.fromkeys((op.name for op in NETWORK_OPS), "triton")
    kernels = Kernels(device, pins, Ledger(), activation=activation)
    weights = synthetic_weights(spec, device, seed=1)
    model = GptOss(spec, weights, kernels, device, max_context=64, activation=activation)
    model.dtype = torch.bfloat16  # a CPU's is float32, which the experts' kernels do not take
    cache = new_cache(spec, 2, 16, device, torch.bfloat16)
    request = Request(request_id="a", token_ids=TOKENS, params=SamplingParams())
    span = Span(
        request=request,
        token_ids=TOKENS,
        start=0,
        end=len(TOKENS),
        full_pages=[0],
        window_pages=[1],
        num_logits=len(TOKENS),
    )
    patch = nullcontext() if reads_fed else mock.patch.object(Chosen, "reads_fed", False)
    with patch, torch.inference_mode():
        hidden = model.forward(build_batch(Plan(spans=[span]), 16, device.torch_device), cache)
    calls = {ran.op: entry.calls for ran, entry in kernels.ledger.entries.items()}
    return hidden, kernels.ledger.launches(), calls


assert interpreting()
torch.set_num_threads(1)
for activation in sys.argv[2:]:
    for dense, after_norms, others in (((), 2, 0), (("qkv", "o"), 4, 2)):
        spec = replace(SPEC, mxfp4_layers=dense)
        hidden, launches, calls = run(spec, activation, reads_fed=True)
        assert launches.get("store_rows", 0) == others, launches  # attention's results, before o
        assert (calls["rms_norm_fed"], calls["rms_norm"]) == (after_norms, 5 - after_norms), calls
        plain, launches, calls = run(spec, activation, reads_fed=False)
        assert launches["store_rows"] == after_norms + others and "rms_norm_fed" not in calls, (launches, calls)
        assert hidden.isfinite().all() and torch.equal(hidden, plain), (activation, dense)
