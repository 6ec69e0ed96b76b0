"""The decode step on a GPU: kernels compared with every op's reference at 120b width, layer by layer.

Each layer of the references starts from the kernels' residual and uses the kernels' routing, so that an error
belongs to one layer. Otherwise two runs that differ only in the order of a sum would be 1e-3 apart after one layer
in bf16, and a near tie of a router would turn that into a fifth of a token's state.
"""

from dataclasses import dataclass, field, replace

import pytest
import torch

from firesteel.config import KernelConfig
from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec
from firesteel.measure.decode.steps import fill_pages, first_batch, lay_out
from firesteel.measure.decode.variants import StepVariant, compare_variants, list_variants
from firesteel.measure.ops.memory import free_memory
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import NAMES, DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import PRESETS, ModelSpec
from firesteel.model.synthetic import synthetic_weights
from tests.model.near_ties import gaps_and_movements

SPEC = replace(PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096)
WHOLE = replace(PRESETS["gpt-oss-120b"], vocab_size=4096)
SMALL = ModelSpec(
    num_layers=4,
    hidden_size=256,
    intermediate_size=192,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    num_experts=8,
    num_active=4,
    vocab_size=4096,
    windows=(128, None) * 2,
    rope=RopeSpec(theta=150000.0),
    max_context=4096,
)
ALL_DENSE = ("qkv", "o", "lm_head")
CONTEXTS = [300, 0, 127, 128, 1000, 64, 63, 2047]
LARGEST_ERROR = 1e-2  # per layer: rms of the difference divided by rms of the values
LARGEST_GAP = 0.05  # of router logits with unit deviation, that rounding can explain, as in test_gpt_oss_gpu.py
MANY_STEPS = 10_000


@dataclass
class Seen:
    """Values seen in a step, layer by layer."""

    entered: list = field(default_factory=list)  # [T, H] residual; the last is what lm_head reads
    left: list = field(default_factory=list)
    routers: list = field(default_factory=list)  # [T, E] logits of the step's own router
    written: list = field(default_factory=list)  # [2, T, K, D] keys and values
    logits: torch.Tensor | None = None  # [T, V]


def open_step(spec, weights, device, implementation, num_requests, room, activation="bf16"):
    """Opens a step; `implementation` is "reference", or any other value for the default."""
    kernels = Kernels(device, {}, Ledger())
    asked = dict.fromkeys(NAMES, implementation) if implementation == "reference" else {}
    ops = DecodeOps.choose(device, kernels.ledger, asked=asked)
    model = GptOss(spec, weights, kernels, device, max_context=max(CONTEXTS) + room + 1, activation=activation)
    contexts = CONTEXTS[:num_requests]
    pages = lay_out(contexts, room=room, page_size=64, window=128, seed=0)
    cache = new_cache(spec, pages.count, 64, device, device.dtype)
    fill_pages(cache, seed=0)
    step = DecodeStep(model, cache, ops, num_requests=num_requests, num_pages=pages.width)
    step.load(first_batch(list(range(num_requests)), contexts, pages, cache))
    return step


def look(step, led=None):
    """Runs a step; with `led`, each layer starts from the residual and routing that another step saw."""
    seen, plain, r = Seen(), step.ops, step.inputs.r

    def enter():
        """Enters a layer, or what follows the last one."""
        if seen.entered:
            seen.left.append(r.clone())
        if led is not None:
            r.copy_(led.entered[len(seen.entered)])
        seen.entered.append(r.clone())

    def qkv(operands):
        enter()
        q, keys, values, *_ = plain.qkv(operands)
        slots = operands.slots
        seen.written.append(torch.stack([pages[slots // 64, :, slots % 64] for pages in (keys, values)]))
        return q, keys, values

    def router(operands):
        seen.routers.append(plain.router(operands).clone())
        return seen.routers[-1] if led is None else led.routers[len(seen.routers) - 1]

    def lm_head(operands):
        enter()
        return plain.lm_head(operands)

    step.ops = plain._replace(qkv=qkv, router=router, lm_head=lm_head)
    try:
        seen.logits = step.run().clone()
    finally:
        step.ops = plain
    return seen


def error(actual, expected):
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


@dataclass
class Comparison:
    layers: list  # largest error of each layer over the steps
    written: float  # largest error of a layer's keys and values
    logits: float
    agree: int = 0  # (token, layer) whose expert sets are the same with free routing
    ties: list = field(default_factory=list)  # gaps where sets differ and the movement of the logits explains it
    partings: list = field(default_factory=list)  # gaps where the movement does not explain it

    @property
    def agreement(self):
        """Share of (token, layer) with the same experts, without ties."""
        return self.agree / (self.agree + len(self.partings))

    def __str__(self):
        return (
            f"largest error of a layer {max(self.layers):.1e} (number {self.layers.index(max(self.layers))}), of "
            f"keys and values {self.written:.1e}, of logits {self.logits:.1e}; expert sets: {self.agree} agree, "
            f"{len(self.ties)} part in ties up to {max(self.ties, default=0):.1e}, beyond: {self.partings}"
        )


def compare(kernels, references, num_steps):
    """Compares steps of both from the same inputs; the kernels' outputs are the next inputs."""
    layers = kernels.model.spec.num_layers
    comparison = Comparison(layers=[0.0] * layers, written=0.0, logits=0.0)
    for _ in range(num_steps):
        begin = kernels.inputs.copy()
        for theirs, ours in zip(pages_of(references), pages_of(kernels), strict=True):
            theirs.copy_(ours)
        ours = look(kernels)
        references.inputs.restore(begin)
        led = look(references, led=ours)
        references.inputs.restore(begin)
        count_sets(comparison, ours, look(references), kernels.model.spec.num_active)
        errors = [error(*pair) for pair in zip(ours.left, led.left, strict=True)]
        comparison.layers = [max(pair) for pair in zip(comparison.layers, errors, strict=True)]
        comparison.written = max(
            comparison.written, *(error(*pair) for pair in zip(ours.written, led.written, strict=True))
        )
        comparison.logits = max(comparison.logits, error(ours.logits, led.logits))
    return comparison


def pages_of(step):
    return {tensor.data_ptr(): tensor for tensor in (*step.cache.keys, *step.cache.values)}.values()


def count_sets(comparison, ours, free, active):
    """Counts expert sets. After a difference a token is not counted in later layers, where its state differs."""
    is_whole = torch.ones(ours.routers[0].shape[0], dtype=torch.bool, device=ours.routers[0].device)
    for mine, theirs in zip(ours.routers, free.routers, strict=True):
        gap, moved = gaps_and_movements(mine, theirs, active)
        sets = [logits.topk(active).indices.sort(-1)[0] for logits in (mine, theirs)]
        same = (sets[0] == sets[1]).all(-1)
        is_tie = gap <= moved.clamp(max=LARGEST_GAP)
        comparison.agree += int((is_whole & same).sum())
        comparison.ties += gap[is_whole & ~same & is_tie].tolist()
        comparison.partings += gap[is_whole & ~same & ~is_tie].tolist()
        is_whole &= same


def check(
    spec, weights, device, num_requests, num_steps, note, activation="bf16", *, largest=LARGEST_ERROR, least=0.99
):
    kernels, references = (
        open_step(spec, weights, device, implementation, num_requests, num_steps, activation)
        for implementation in ("cuda", "reference")
    )
    comparison = compare(kernels, references, num_steps)
    note("comparison", str(comparison))
    print(comparison)
    ran = {entry.op: entry.implementation for entry in kernels.model.kernels.ledger.entries}
    experts, lm_head = ran.pop("decode_experts", None), ran.pop("decode_lm_head")
    assert set(ran.values()) == {"cuda"} and experts == find_experts(spec, num_requests)
    assert lm_head == ("cuda" if num_requests > 1 or "lm_head" in spec.mxfp4_layers else "cuda:rows")
    assert max(*comparison.layers, comparison.written, comparison.logits) <= largest, str(comparison)
    assert comparison.agreement >= least, str(comparison)


def find_experts(spec, num_requests):
    """Returns the implementation of decode_experts; None if rows differ in length and two other ops run."""
    if spec.hidden_size != spec.intermediate_size:
        return None
    return "cuda:even" if num_requests > 1 else "cuda:passed"


@pytest.fixture(scope="module")
def device():
    return find_device("cuda")


SPECS = {"kindling's widths": SMALL, "120b widths": SPEC}
PRECISIONS = {"as shipped": (), "all MXFP4": ALL_DENSE}


@pytest.fixture(scope="module", params=[(spec, dense) for spec in SPECS for dense in PRECISIONS], ids=", ".join)
def model(request, device):
    """(spec, weights) of four layers."""
    spec, dense = request.param
    free_memory(device)
    spec = replace(SPECS[spec], mxfp4_layers=PRECISIONS[dense])
    return spec, synthetic_weights(spec, device, seed=11)


@pytest.fixture(scope="module", params=PRECISIONS)
def whole_model(request, device):
    """(spec, weights) of all 36 layers."""
    free_memory(device)
    spec = replace(WHOLE, mxfp4_layers=PRECISIONS[request.param])
    return spec, synthetic_weights(spec, device, seed=11)


@pytest.mark.gpu
@pytest.mark.parametrize("num_requests", [1, 2, 4, 8])
def test_each_layer_equals_the_reference_and_experts_differ_only_in_ties(
    model, device, num_requests, record_property
):
    check(*model, device, num_requests, 8, record_property)


@pytest.mark.gpu
@pytest.mark.parametrize("num_requests", [1, 8])
def test_each_layer_equals_the_reference_with_activations_in_mxfp8(model, device, num_requests, record_property):
    """A rounding of the norm can move a value to the next E4M3 code, by up to an eighth."""
    check(*model, device, num_requests, 4, record_property, "mxfp8", largest=2e-2, least=0.97)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("num_requests", [1, 2, 4, 8])
def test_all_36_layers_equal_the_reference(whole_model, device, num_requests, record_property):
    check(*whole_model, device, num_requests, 4, record_property)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("num_requests", [1, 8])
def test_10_000_steps_give_the_same_bits_in_every_launch_mode(model, device, num_requests):
    """Covers eager and graph, with dependent launch and without, each with delays as well."""
    step = open_step(*model, device, "cuda", num_requests, MANY_STEPS)
    ways = [*list_variants(device, KernelConfig()), StepVariant(graph=False, dependent=True)]
    compare_variants(step, ways, device, MANY_STEPS, delays=True)
    ran = {entry.op: entry.implementation for entry in step.model.kernels.ledger.entries}
    assert ran.get("decode_experts") == find_experts(model[0], num_requests)


@pytest.mark.gpu
def test_nothing_waits_for_the_device(device, forbid_waiting):
    step = open_step(SPEC, synthetic_weights(SPEC, device, seed=11), device, "cuda", 1, 8)
    begin = step.inputs.copy()
    step.run()  # compiles
    with forbid_waiting():
        step.inputs.restore(begin)
        step.run()


TINY = replace(
    SPEC,
    hidden_size=96,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_experts=6,
    num_active=2,
    vocab_size=300,
)


@pytest.fixture
def tiny():
    """tiny(change) compares a step with changed weights and one with the original weights, on a CPU."""
    cpu = find_device("cpu")
    weights, others = (synthetic_weights(TINY, cpu, seed=11) for _ in range(2))
    plain = open_step(TINY, weights, cpu, "reference", 3, 4)

    def compare_with(change):
        change(others)
        return compare(open_step(TINY, others, cpu, "reference", 3, 4), plain, 4)

    return compare_with


def test_the_same_weights_give_no_error_and_the_same_experts(tiny):
    comparison = tiny(lambda weights: None)
    assert comparison.layers == [0.0] * 4 and comparison.written == comparison.logits == 0.0
    assert comparison.agree == 4 * 3 * 4 and not comparison.ties and not comparison.partings


def test_error_is_reported_for_its_own_layer_only(tiny):
    comparison = tiny(lambda weights: weights.layers[2].experts.down_scales.add_(1))
    assert [error > LARGEST_ERROR for error in comparison.layers] == [False, False, True, False], comparison.layers
    assert comparison.written == comparison.logits == 0.0


def test_keys_values_and_logits_are_compared(tiny):
    def change(weights):
        weights.layers[3].qkv_bias[-64:] += 1
        weights.norm.mul_(1.1)

    comparison = tiny(change)
    assert comparison.written > 0.1 and comparison.logits == pytest.approx(0.1, rel=1e-3)
    assert max(comparison.layers[:3]) == 0.0 < comparison.layers[3]


def test_expert_differences_beyond_rounding_are_counted_once_per_token(tiny):
    comparison = tiny(lambda weights: weights.layers[1].router_bias.copy_(torch.tensor([9.0, 9, 0, 0, 0, 0])))
    assert comparison.agreement < 0.9 and min(comparison.partings) > 0
    parted = len(comparison.partings) + len(comparison.ties)
    assert parted <= 4 * 3 and comparison.agree == 4 * 3 + 3 * (4 * 3 - parted)
