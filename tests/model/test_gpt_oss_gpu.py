"""Four layers of 120b width on a GPU: every op in Triton compared with its reference, layer by layer."""

import functools
from dataclasses import dataclass, field, replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.engine.step.batch import build_batch
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.chosen import Chosen
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.registry import NETWORK_OPS
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Plan, Request, SamplingParams, Span
from tests.model.near_ties import compare_choices

pytestmark = pytest.mark.gpu

SPEC = replace(PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096)
ALL_DENSE = ("qkv", "o", "lm_head")
PAGE_SIZE = 64
PROMPTS = (257, 30)  # tokens of two requests, computed together
DECODED = 5
PAGES = ([7, 2, 9, 0, 4], [3])  # of full layers, neither sorted nor adjacent; pages of window layers follow
NUM_PAGES = 10  # of either kind
LARGEST_ERROR = 1e-2  # rms of the difference over rms of the hidden state, activations in bf16
# Router logits have unit deviation here. Inputs within 1e-2 move each by 1e-2, and the difference of two by 1.4e-2:
# the bound is three and a half such deviations.
ROUNDING_GAP = 0.05
# With free routing, a token that went to other experts changes the tokens that attend to it by more than rounding.
LARGEST_GAP = 4 * ROUNDING_GAP


@dataclass
class Trace:
    """Values seen in a run of all steps, in the order of the calls."""

    hidden: list = field(default_factory=list)  # [T, H] after each layer of each step
    routes: list = field(default_factory=list)  # (ids, weights) of each layer of each step
    logits: list = field(default_factory=list)  # [T, E] of the router, likewise
    ledger: Ledger | None = None


def steps():
    """Returns the plans: both prompts at once, then one token at a time."""
    generator = torch.Generator().manual_seed(7)
    ids = [torch.randint(SPEC.vocab_size, (size + DECODED,), generator=generator).tolist() for size in PROMPTS]
    for number in range(DECODED + 1):
        requests = zip(ids, PROMPTS, PAGES, strict=True)
        yield Plan(spans=[span(tokens[: size + number], number, pages) for tokens, size, pages in requests])


def span(token_ids, number, pages):
    """Returns a span of step `number`: the whole prompt, then the last token.

    All logits are wanted, so no layer drops rows.
    """
    request = Request(request_id=str(pages), token_ids=token_ids, params=SamplingParams())
    start, end = len(token_ids) - 1 if number else 0, len(token_ids)
    return Span(
        request=request,
        token_ids=token_ids,
        start=start,
        end=end,
        full_pages=pages,
        window_pages=[NUM_PAGES + page for page in pages],
        num_logits=end - start,
    )


def run(spec, weights, device, implementation, activation="bf16", forced=None):
    """Returns the Trace of a run; `forced` routes replace the run's own, which are recorded all the same."""
    pins = dict.fromkeys((op.name for op in NETWORK_OPS), implementation)
    kernels = Kernels(device, pins, Ledger(), activation=activation)
    model = GptOss(spec, weights, kernels, device, max_context=512, activation=activation)
    trace, norm, route = Trace(ledger=kernels.ledger), model.norm, kernels.route
    norms = 0

    def watch_norm(*args):
        nonlocal norms
        rows, residual = norm(*args)
        number = norms % (2 * spec.num_layers + 1)
        norms += 1
        if number and number % 2 == 0:  # the norm before attention, or the last one: a layer has ended
            trace.hidden.append(residual.float())
        return rows, residual

    def watch_route(operands):
        chosen = route(operands)
        trace.logits.append(operands.x.float() @ operands.weight.float().T + operands.bias.float())
        trace.routes.append(chosen)
        return chosen if forced is None else forced[len(trace.routes) - 1]

    model.norm, kernels.route = watch_norm, watch_route
    cache = new_cache(spec, 2 * NUM_PAGES, PAGE_SIZE, device, device.dtype)
    with torch.inference_mode():
        for plan in steps():
            model.forward(build_batch(plan, PAGE_SIZE, device.torch_device), cache)
    return trace


def layer_errors(actual, expected):
    """Returns the largest error over the steps, per layer."""
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(actual.hidden, expected.hidden, strict=True)]
    return [max(errors[layer :: SPEC.num_layers]) for layer in range(SPEC.num_layers)]


@pytest.fixture(scope="module")
def device():
    return find_device("cuda")


@pytest.fixture(scope="module", params=[(), ALL_DENSE], ids=["dense bf16", "dense mxfp4"])
def weighted(request, device):
    """Returns (spec, weights) with dense layers as published, or in MXFP4."""
    spec = replace(SPEC, mxfp4_layers=request.param)
    yield spec, synthetic_weights(spec, device, seed=11)
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def reference(weighted, device):
    """Returns a function of the activation that gives the Trace of the references, cached."""
    return functools.cache(lambda activation: run(*weighted, device, "reference", activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_layer_equals_the_reference_if_routing_is_forced_equal(weighted, reference, device, activation):
    expected = reference(activation)
    actual = run(*weighted, device, "triton", activation, forced=expected.routes)
    assert {ran.implementation.partition(":")[0] for ran in actual.ledger.entries} == {"triton"}
    assert {ran.activation for ran in actual.ledger.entries if ran.op == "moe_matmul"} == {activation}
    assert len(actual.hidden) == SPEC.num_layers * (1 + DECODED)
    errors, allowed = layer_errors(actual, expected), [LARGEST_ERROR] * SPEC.num_layers
    if activation != "bf16":  # bf16 rounding can move a value by a whole code
        exact = run(*weighted, device, "reference", forced=expected.routes)
        allowed = layer_errors(expected, exact)
    assert all(error <= most for error, most in zip(errors, allowed, strict=True)), (errors, allowed)


@pytest.mark.parametrize("forced", [False, True], ids=["free", "forced"])
def test_routers_choose_the_same_experts_except_for_rounding(weighted, reference, device, forced):
    expected = reference("bf16")
    actual = run(*weighted, device, "triton", forced=expected.routes if forced else None)
    bounds = (ROUNDING_GAP, ROUNDING_GAP if forced else LARGEST_GAP)
    agree, explained = compare_choices(
        actual, expected, num_layers=SPEC.num_layers, active=SPEC.num_active, bounds=bounds
    )
    assert explained >= (1.0 if forced else 0.99), f"{agree:.4f} agree, {explained:.4f} but for rounding"
    assert agree > 0.8


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_norms_store_for_the_matmuls_that_follow_to_the_same_bits(weighted, device, activation, monkeypatch):
    """Rows that do not come from a norm are stored by the matmul: attention's output before an MXFP4 o."""
    is_dense, steps_done = bool(weighted[0].mxfp4_layers), 1 + DECODED
    fed = run(*weighted, device, "triton", activation)
    norms = sum(entry.calls for ran, entry in fed.ledger.entries.items() if ran.op == "rms_norm_fed")
    assert norms == steps_done * SPEC.num_layers * (2 if is_dense else 1)
    others = steps_done * SPEC.num_layers if is_dense else 0
    assert fed.ledger.launches().get("store_rows", 0) == others
    monkeypatch.setattr(Chosen, "reads_fed", property(lambda chosen: False, lambda chosen, reads: None))
    plain = run(*weighted, device, "triton", activation)
    assert plain.ledger.launches()["store_rows"] == norms + others
    assert all(torch.equal(a, b) for a, b in zip(fed.hidden, plain.hidden, strict=True))


def test_same_bits_twice(weighted, device):
    first, second = (run(*weighted, device, "triton", "mxfp8") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.hidden, second.hidden, strict=True))


def test_error_of_one_layer_is_seen(weighted, reference, device):
    """Shows that the comparison can fail: the last scales of the third layer's experts are doubled."""
    expected = reference("bf16")
    scales = weighted[1].layers[2].experts.down_scales
    scales += 1
    try:
        errors = layer_errors(run(*weighted, device, "triton", forced=expected.routes), expected)
    finally:
        scales -= 1
    assert max(errors[:2]) <= LARGEST_ERROR < min(errors[2:]), errors
