"""The decode step on a GPU: its kernels against every op's reference at 120b width, layer by layer."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.kv_cache import new_cache
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.measure.decode import fill_pages, first_batch, lay_out
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import NAMES, DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights

SPEC = replace(PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096)
WHOLE = replace(PRESETS["gpt-oss-120b"], vocab_size=4096)
ALL_DENSE = ("qkv", "o", "lm_head")
CONTEXTS = [300, 0, 127, 128, 1000, 64, 63, 2047]
STEPS = 8
LARGEST_ERROR = 1e-2  # rms of the difference over rms of the hidden state
ROUNDING_GAP = 0.05  # of router logits with unit deviation, as in test_gpt_oss_gpu.py


@dataclass
class Trace:
    """What the steps saw, in the order of the calls."""

    hidden: list = field(default_factory=list)  # [T, H] after each layer
    routers: list = field(default_factory=list)  # [T, E] logits of each layer, the run's own
    inputs: list = field(default_factory=list)  # of each step
    logits: list = field(default_factory=list)  # [T, V] of each step
    ledger: Ledger | None = None


def run(spec, weights, device, implementation, num_requests, *, forced=None):
    """A Trace; `forced` is one whose inputs and routing are used in place of the run's own."""
    kernels = Kernels(device, {}, Ledger())
    ops = DecodeOps.choose(device, kernels.ledger, asked=dict.fromkeys(NAMES, implementation))
    model = GptOss(spec, weights, kernels, device, max_context=4096)
    contexts, found = CONTEXTS[:num_requests], Trace(ledger=kernels.ledger)
    pages = lay_out(contexts, room=STEPS, page_size=64, window=128, seed=0)
    cache = new_cache(spec, pages.count, 64, device, device.dtype)
    fill_pages(cache, seed=0)
    step = DecodeStep(model, cache, ops, num_requests=num_requests, num_pages=pages.width)
    step.load(first_batch(list(range(num_requests)), contexts, pages, cache))
    plain = step.ops

    def router(*args):
        found.routers.append(plain.router(*args))
        return found.routers[-1] if forced is None else forced.routers[len(found.routers) - 1]

    def watched(op):
        def run(*args):
            result = op(*args)
            found.hidden.append(step.inputs.r.float().clone())
            return result

        return run

    step.ops = plain._replace(router=router, experts=watched(plain.experts), fc2=watched(plain.fc2))
    for number in range(STEPS):
        if forced is not None:
            step.inputs.restore(forced.inputs[number])
        found.inputs.append(step.inputs.copy())
        found.logits.append(step.run().clone())
    return found


def layer_errors(actual, expected, num_layers):
    """The largest over the steps, for each layer."""
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(actual.hidden, expected.hidden, strict=True)]
    return [max(errors[layer::num_layers]) for layer in range(num_layers)]


def agreement(actual, expected, active):
    """Share of (token, layer) whose expert sets agree, or part within rounding."""
    same = []
    for ours, theirs in zip(actual.routers, expected.routers, strict=True):
        best = theirs.topk(active + 1)[0]
        sets = [logits.topk(active).indices.sort(-1)[0] for logits in (ours, theirs)]
        same.append((sets[0] == sets[1]).all(-1) | (best[:, -2] - best[:, -1] <= ROUNDING_GAP))
    return float(torch.cat(same).float().mean())


def compare(spec, device, num_requests):
    weights = synthetic_weights(spec, device, seed=11)
    expected = run(spec, weights, device, "reference", num_requests)
    actual = run(spec, weights, device, "cuda", num_requests, forced=expected)
    assert {ran.implementation.partition(":")[0] for ran in actual.ledger.entries} == {"cuda"}
    errors = layer_errors(actual, expected, spec.num_layers)
    assert max(errors) <= LARGEST_ERROR, errors
    assert agreement(actual, expected, spec.num_active) >= 0.99
    for ours, theirs in zip(actual.logits, expected.logits, strict=True):
        assert (ours - theirs).norm() / theirs.norm() <= 2 * LARGEST_ERROR


@pytest.fixture(scope="module")
def device():
    return find_device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dense", [(), ALL_DENSE], ids=["as shipped", "all MXFP4"])
@pytest.mark.parametrize("num_requests", [1, 3, 8])
def test_each_layer_is_the_references_when_routing_is_forced_equal(device, dense, num_requests):
    compare(replace(SPEC, mxfp4_layers=dense), device, num_requests)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("dense", [(), ALL_DENSE], ids=["as shipped", "all MXFP4"])
def test_all_36_layers_are_the_references_when_routing_is_forced_equal(device, dense):
    compare(replace(WHOLE, mxfp4_layers=dense), device, 4)


@pytest.mark.gpu
def test_nothing_waits_for_the_device(device, forbid_waiting):
    weights = synthetic_weights(SPEC, device, seed=11)
    model = GptOss(SPEC, weights, Kernels(device, {}, Ledger()), device, max_context=4096)
    pages = lay_out([100], room=STEPS, page_size=64, window=128, seed=0)
    cache = new_cache(SPEC, pages.count, 64, device, device.dtype)
    fill_pages(cache, seed=0)
    batch = first_batch([1], [100], pages, cache)
    ops = DecodeOps.choose(device, model.kernels.ledger)
    step = DecodeStep(model, cache, ops, num_requests=1, num_pages=pages.width)
    step.load(batch)
    step.run()  # compiles
    with forbid_waiting():
        step.load(batch)
        step.run()


def test_error_of_one_layer_is_seen():
    """That the comparison can fail; with references on both sides, on a CPU."""
    small = replace(
        SPEC, hidden_size=96, intermediate_size=64, num_heads=4, num_kv_heads=2, head_dim=32, num_experts=6,
        num_active=2, vocab_size=300,
    )  # fmt: skip
    cpu = find_device("cpu")
    weights = synthetic_weights(small, cpu, seed=11)
    expected = run(small, weights, cpu, "reference", 3)
    same = run(small, weights, cpu, "reference", 3, forced=expected)
    assert layer_errors(same, expected, 4) == [0.0] * 4 and agreement(same, expected, 2) == 1.0
    weights.layers[2].experts.down_scales.add_(1)
    errors = layer_errors(run(small, weights, cpu, "reference", 3, forced=expected), expected, 4)
    assert max(errors[:2]) == 0.0 and min(errors[2:]) > LARGEST_ERROR, errors
