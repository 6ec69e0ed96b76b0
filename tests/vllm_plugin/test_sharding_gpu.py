"""Decoding steps of tensor-parallel ranks at 120b width against the whole network's step, layer by layer.

All ranks run on one GPU, one after the other. Each of their layers starts from the residual of the whole network
and takes its routing, so that an error is one layer's own. Ranks round their partial sums to bf16 before they are
added, the first one with the residual in it: 2^-9 of a value per rounding.
"""

from dataclasses import dataclass, field, replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import new_cache
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.measure.decode.steps import fill_pages, first_batch, lay_out
from firesteel.measure.ops.memory import free_memory
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.gpt_oss import GptOss, Ranks
from firesteel.model.graphs import StepGraph
from firesteel.model.spec import PRESETS
from firesteel.model.synthetic import synthetic_weights
from firesteel.vllm_plugin.sharding import Shard, synthetic_shard
from tests.vllm_plugin.ranks import Turns

SPEC = replace(PRESETS["gpt-oss-120b"], num_layers=4, windows=(128, None) * 2, vocab_size=4096)
SMALL = replace(SPEC, hidden_size=256, intermediate_size=320, num_heads=8, num_kv_heads=4, num_experts=8)
PRECISIONS = {"as shipped": (), "all MXFP4": ("qkv", "o", "lm_head")}
CONTEXTS = [300, 0, 127, 128, 1000, 64, 63, 2047]
PAGE_SIZE = 64
SEED = 11
LARGEST_ERROR = 1e-2  # rms of the difference over rms of the whole; test_decode_gpu.py allows it for a layer


@dataclass
class Seen:
    """Values of one step, layer by layer."""

    entered: list = field(default_factory=list)  # [T, H] residual; the last is what the final norm reads
    between: list = field(default_factory=list)  # [T, H] residual after attention
    routers: list = field(default_factory=list)  # [T, E] logits
    written: list = field(default_factory=list)  # [2, T, K, D] keys and values
    logits: torch.Tensor | None = None  # [T, rows of lm_head]


def open_step(device, spec, weights, num_requests, *, ranks=None, kv_heads=None):
    """`kv_heads` is (first head of the rank, heads of the whole network): caches hold the same keys and values."""
    kernels = Kernels(device, {}, Ledger())
    model = GptOss(spec, weights, kernels, device, max_context=max(CONTEXTS) + 2, ranks=ranks)
    contexts = CONTEXTS[:num_requests]
    pages = lay_out(contexts, room=1, page_size=PAGE_SIZE, window=128, seed=0)
    cache = new_cache(spec, pages.count, PAGE_SIZE, device, device.dtype)
    first, num_heads = kv_heads or (0, spec.num_kv_heads)
    filled = new_cache(
        replace(spec, num_heads=num_heads, num_kv_heads=num_heads), pages.count, PAGE_SIZE, device, device.dtype
    )
    fill_pages(filled, seed=0)
    for ours, theirs in zip((*cache.keys, *cache.values), (*filled.keys, *filled.values), strict=True):
        ours.copy_(theirs[:, first : first + spec.num_kv_heads])
    ops = DecodeOps.choose(device, kernels.ledger)
    step = DecodeStep(model, cache, ops, num_requests=num_requests, num_pages=pages.width)
    step.load(first_batch(list(range(num_requests)), contexts, pages, cache))
    return step


def look(step, led=None):
    """Runs a step without sampling; with `led`, each part of a layer starts from the residual seen there."""
    seen, plain = Seen(), step.ops

    def enter(r, residuals, led_residuals):
        residuals.append(r.clone())
        if led is not None:
            r.copy_(led_residuals[len(residuals) - 1])

    def qkv(operands):
        enter(operands.r, seen.entered, led and led.entered)
        q, keys, values, *_ = plain.qkv(operands)
        slots = operands.slots
        places = (slots // PAGE_SIZE, slice(None), slots % PAGE_SIZE)
        seen.written.append(torch.stack([pages[places] for pages in (keys, values)]))
        return q, keys, values

    def router(operands):
        enter(operands.r, seen.between, led and led.between)
        seen.routers.append(plain.router(operands).clone())
        return seen.routers[-1] if led is None else led.routers[len(seen.routers) - 1]

    step.ops = plain._replace(qkv=qkv, router=router)
    try:
        r = step.run_layers()
    finally:
        step.ops = plain
    enter(r, seen.entered, led and led.entered)
    seen.logits = step.project_logits(r)[0].clone()
    return seen


def error(actual, expected):
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


def compare(device, spec, size, num_requests, largest=LARGEST_ERROR):
    """Checks every rank's step against the whole network's; returns a line that says how far apart they are."""
    step = open_step(device, spec, synthetic_weights(spec, device, seed=SEED), num_requests)
    with torch.inference_mode():
        whole = look(step)
    del step
    free_memory(device)
    turns = Turns(size)
    steps = []
    for rank in range(size):
        shard = Shard(whole=spec, rank=rank, size=size)
        heads = (rank * shard.spec.num_kv_heads, spec.num_kv_heads)
        weights = synthetic_shard(shard, device, seed=SEED)
        ranks = turns.ranks(rank)
        steps.append(open_step(device, shard.spec, weights, num_requests, ranks=ranks, kv_heads=heads))
    results = turns.run(lambda rank: look(steps[rank], whole))
    residuals, written = [], []
    for seen in results:
        pairs = [*zip(seen.entered, whole.entered, strict=True), *zip(seen.between, whole.between, strict=True)]
        residuals += [error(*pair) for pair in pairs]
        assert all(torch.equal(*pair) for pair in zip(seen.routers, whole.routers, strict=True)), (
            "one router for all"
        )
    for number in range(spec.num_layers):
        heads = torch.cat([seen.written[number] for seen in results], dim=2)
        written.append(error(heads, whole.written[number]))
    gathered = torch.cat([seen.logits for seen in results], dim=1)[:, : spec.vocab_size]
    logits = error(gathered, whole.logits)
    line = (
        f"{size} ranks, {num_requests} requests: residual {max(residuals):.1e}, "
        f"keys and values {max(written):.1e}, logits {logits:.1e}"
    )
    assert max(*residuals, *written, logits) <= largest, line
    return line, steps


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("num_requests", [1, 2, 5, 8])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_each_layer_of_all_ranks_is_the_whole_networks(size, num_requests, precision, record_property):
    device = find_device("cuda")
    free_memory(device)
    line, steps = compare(device, replace(SPEC, mxfp4_layers=PRECISIONS[precision]), size, num_requests)
    record_property("comparison", line)
    print(f"{precision}, {line}")
    for step in steps:
        ran = {(ran.op, ran.implementation) for ran in step.model.kernels.ledger.entries}
        assert all(implementation.startswith("cuda") for _, implementation in ran), ran
        assert {"decode_fc1", "decode_fc2"} <= {op for op, _ in ran} and "decode_experts" not in {
            op for op, _ in ran
        }


@pytest.mark.gpu
@pytest.mark.parametrize("num_requests", [1, 8])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_captured_rank_gives_the_bits_of_an_eager_one(rank, num_requests):
    """The sum is that of one rank here: what counts is that clearing, launches and sums are captured in order."""
    device = find_device("cuda")
    free_memory(device)
    shard = Shard(whole=SPEC, rank=rank, size=4)
    ranks = Ranks(is_first=rank == 0, add=lambda part: part.clone())
    weights = synthetic_shard(shard, device, seed=SEED)
    step = open_step(device, shard.spec, weights, num_requests, ranks=ranks)
    begin = step.inputs.copy()

    def undo():
        step.inputs.restore(begin)

    expected = step.run_layers().clone()
    undo()
    graph = StepGraph(step.run_layers, step.model.kernels.ledger, device, undo=undo)
    for _ in range(3):
        undo()
        assert torch.equal(graph.replay(), expected)


@pytest.mark.parametrize("size", [2, 4])
def test_references_on_a_cpu_agree_as_closely_as_their_sums_allow(size):
    """In float32, so that the comparison itself is tested where there is no GPU."""
    line, _ = compare(find_device("cpu"), SMALL, size, 3, largest=1e-5)
    assert line.startswith(f"{size} ranks, 3 requests")
